"""Tokens, tenants, scopes and tables as one table: whoever sends what, the file's text alone says who it is and may do.

Files are drawn, changed, broken and mended; the model is the list of what was written. A provider of signed tokens
stands beside the file and is asked about what the file does not know, and about nothing else.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.gateway.http.admission.desk import CHECKED_BY_ITS_HANDLER, OF_THE_TENANT, check_route, check_tables
from oncegate.gateway.http.admission.gate import TOKENS, is_still_known
from oncegate.gateway.http.auth import TOKEN_BYTES_MAX, Tokens
from oncegate.gateway.http.identity import Identity, Scope, allowed
from oncegate.gateway.http.server import ROUTES
from oncegate.rifl.errors import Code, OncegateError

NAMES = ("orders", "orders.old", "order", "carts", "c", "payments")
PREFIXES = ("", "", "orders", "orders.", "c", "payments")
TEXTS = tuple(f"token-{number}" for number in range(12))
TENANTS = ("ann", "bob", "eve")
NOW_S = 4_000_000_000
"""In Unix time: tokens that end about then have not ended yet."""


@dataclass
class Written:
    """One token of a file."""

    text: str
    name: str
    tenant: str
    grants: list[str]
    rate: int | None
    ends_s: int | None

    def lines(self) -> str:
        said = [
            "[[token]]",
            f'name = "{self.name}"',
            f'sha256 = "{hashlib.sha256(self.text.encode()).hexdigest()}"',
            f'tenant = "{self.tenant}"',
            f"scopes = {self.grants}",
        ]
        if self.rate is not None:
            said.append(f"operations_per_s = {self.rate}")
        if self.ends_s is not None:
            said.append(f"expires = {datetime.fromtimestamp(self.ends_s, UTC).isoformat()}")
        return "\n".join(said)

    def may(self, scope: str, name: str) -> bool:
        """What the text says: one of the grants is this scope, for all names or for those that begin so."""
        granted = [grant.partition(":") for grant in self.grants]
        return any(kind == scope and name.startswith(prefix) for kind, _, prefix in granted)

    def has(self, scope: str) -> bool:
        return any(grant.partition(":")[0] == scope for grant in self.grants)

    def has_all(self, scope: str) -> bool:
        return scope in self.grants


@dataclass
class Provider:
    """Knows tokens by their signature, by the test's word for it."""

    known: dict[str, Identity] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    changes: bool = False
    refreshed: int = 0

    def identify(self, token: str, now_s: float) -> Identity | None:
        self.asked.append(token)
        return self.known.get(token)

    def refresh(self, *, anyway: bool = False) -> bool:
        self.refreshed += 1
        return self.changes


def drawn(dice: random.Random) -> list[Written]:
    grants = [f"{scope}:{prefix}".removesuffix(":") for scope in Scope for prefix in PREFIXES]
    return [
        Written(
            text,
            f"name-{number}",
            dice.choice(TENANTS),
            sorted(dice.sample(grants, dice.choice((0, 1, 2, 4)))),
            dice.choice((None, 5, 7)),
            dice.choice((None, NOW_S - 1, NOW_S, NOW_S + 1)),
        )
        for number, text in enumerate(dice.sample(TEXTS, dice.randrange(1, 9)))
    ]


def write(path: Path, tokens: list[Written], rates: dict[str, int], more: str = "") -> None:
    given = [f'[[tenant]]\nname = "{name}"\noperations_per_s = {rate}' for name, rate in rates.items()]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join([*(token.lines() for token in tokens), *given, more]))
    fresh.rename(path)


class Known:
    """The tokens of a node, and the model of them."""

    def __init__(self, dice: random.Random, path: Path) -> None:
        self.dice, self.path = dice, path
        self.written, self.rates = drawn(dice), {"ann": 3, "bob": 0}
        write(path, self.written, self.rates)
        self.provider = Provider(
            {text: Identity(f"signed-{text}", "eve", frozenset({Scope.READ})) for text in TEXTS[::2]}
        )
        self.tokens = Tokens(path, self.provider)

    def change(self) -> None:
        before = self.provider.refreshed
        self.provider.changes = self.dice.random() < 0.5
        if (how := self.dice.choice(("other", "broken", "twice", "tenant twice", "same"))) == "other":
            self.written, self.rates = drawn(self.dice), {self.dice.choice(TENANTS): self.dice.choice((0, 9))}
            write(self.path, self.written, self.rates)
        elif how == "broken":
            write(self.path, drawn(self.dice), {}, "nonsense = [")
        elif how == "twice":
            one, *_ = some = drawn(self.dice)
            other = Written(*vars(one).values())
            if self.dice.random() < 0.5:
                other.name = "another"
            else:
                other.text = "another"
            write(self.path, [*some, other], {})
        elif how == "tenant twice":
            write(self.path, drawn(self.dice), {"ann": 1}, '[[tenant]]\nname = "ann"\noperations_per_s = 2')
        assert self.tokens.refresh() == (how == "other" or self.provider.changes)
        assert self.provider.refreshed == before + 1, "its keys are looked at whatever became of the file"

    def who(self, text: str, now_s: int) -> Written | Identity | None:
        """What the model says of a token: of the file, signed, or nobody's."""
        for one in self.written:
            if one.text == text:
                return one if one.ends_s is None or now_s < one.ends_s else None
        return self.provider.known.get(text)

    def identified(self, header: str | None, now_s: int) -> Identity | None:
        try:
            return self.tokens.identify(header, now_s)
        except OncegateError as refusal:
            assert refusal.code is Code.UNAUTHENTICATED  # noqa: PT017 - what else it is, the caller compares
            return None

    def check(self) -> None:
        for text in (*TEXTS, "another", "nobody"):
            now_s = NOW_S + self.dice.choice((-2, -1, 0, 1))
            self.provider.asked.clear()
            scheme, blank = self.dice.choice(("Bearer ", "bearer ", "BEARER ")), self.dice.choice(("", " "))
            found = self.identified(f"{scheme}{blank}{text}{blank}", now_s)
            who = self.who(text, now_s)
            of_the_file = any(one.text == text for one in self.written)
            assert self.provider.asked == ([] if of_the_file else [text])
            if who is None or isinstance(who, Identity):
                assert found == who
                continue
            assert found is not None
            assert (found.name, found.tenant, found.operations_per_s) == (who.name, who.tenant, who.rate)
            assert found.sees_all == who.has_all("admin")
            for scope in Scope:
                assert (scope in found.scopes) == who.has(scope)
                for name in NAMES:
                    assert found.may(scope, name) == who.may(scope, name), f"{who.grants} {scope} {name}"
        for header in (None, "", "Bearer", "Bearer ", f"Basic {TEXTS[0]}", TEXTS[0], f"Bearer {TEXTS[0]} x"):
            assert self.identified(header, 0) is None
        for tenant in TENANTS:
            assert self.tokens.rate_of(tenant) == self.rates.get(tenant)


@pytest.mark.parametrize("seed", range(5))
def test_who_a_token_is_and_what_it_may_do_is_what_the_newest_sound_file_says(seed: int, tmp_path: Path) -> None:
    known = Known(random.Random(seed), tmp_path / "tokens.toml")
    for _ in range(12):
        known.check()
        known.change()
    known.check()


@pytest.mark.parametrize("seed", range(5))
def test_request_that_lasts_goes_on_exactly_while_its_token_would_be_admitted(seed: int, tmp_path: Path) -> None:
    known = Known(random.Random(seed), tmp_path / "tokens.toml")
    for _ in range(6):
        for text in TEXTS:
            headers = {"Authorization": f"Bearer {text}"}
            request: Any = SimpleNamespace(app={TOKENS: known.tokens}, headers=headers)
            who = known.who(text, NOW_S - 10**8)
            for scope in Scope:
                if isinstance(who, Written):
                    assert is_still_known(request, scope, None) == who.has(scope)
                    for name in NAMES:
                        assert is_still_known(request, scope, name) == who.may(scope, name)
                else:
                    assert is_still_known(request, scope, None) == (who is not None and scope is Scope.READ)
        known.change()
    nobody: Any = SimpleNamespace(app={}, headers={})
    assert is_still_known(nobody, Scope.ADMIN, "orders"), "a node without tokens lets everybody do everything"


def test_a_token_may_be_as_long_as_the_bound_and_no_longer() -> None:
    whole = "x" * TOKEN_BYTES_MAX
    signed = Identity("s", "ann", frozenset())
    provider = Provider({whole: signed, whole + "x": signed})
    tokens = Tokens(None, provider)
    assert tokens.identify(f"Bearer {whole}", 0) == signed
    with pytest.raises(OncegateError):
        tokens.identify(f"Bearer {whole}x", 0)
    assert tokens.rate_of("ann") is None


@pytest.mark.parametrize("seed", range(20))
def test_every_name_in_a_path_body_or_query_has_to_be_the_tokens(seed: int) -> None:
    """Of a flow and a table in one path, too: a route is no way around a prefix."""
    dice = random.Random(seed)
    who = Written(
        "",
        "n",
        "ann",
        sorted(f"{s}:{p}".removesuffix(":") for s in Scope for p in dice.sample(PREFIXES, 1)),
        None,
        None,
    )
    scopes, within = allowed(who.grants)
    identity = Identity("n", "ann", scopes, None, within)
    for route in ROUTES:
        if route.scope is None:
            continue
        parts = {"table", "flow"} & {part.strip("{}") for part in route.path.split("/")}
        names = {part: dice.choice(NAMES) for part in parts} | {"key": "orders"}
        may = all(who.may(route.scope, names[part]) for part in parts)
        if not parts and not who.has_all(route.scope):
            of_the_tenant = route.path.startswith(OF_THE_TENANT) and route.scope is not Scope.ADMIN
            may = of_the_tenant or route.path in CHECKED_BY_ITS_HANDLER
        elif route.path in CHECKED_BY_ITS_HANDLER:
            may = True
        assert _passes(lambda: check_route(identity, route, route.scope, names)) == may, f"{route.path} {names}"  # noqa: B023
        every = names | {"table": dice.choice(NAMES), "flow": dice.choice(NAMES)}
        if route.path not in CHECKED_BY_ITS_HANDLER:
            may = who.may(route.scope, every["table"]) and who.may(route.scope, every["flow"])
            assert _passes(lambda: check_route(identity, route, route.scope, every)) == may  # noqa: B023
    for scope in Scope:
        both = {"table": dice.choice(NAMES), "flow": dice.choice(NAMES)}
        may = all(who.may(scope, name) for name in both.values())
        assert _passes(lambda: check_tables(identity, scope, both.values())) == may  # noqa: B023


def _passes(check: Any) -> bool:
    try:
        check()
    except OncegateError:
        return False
    return True
