"""Where each setting of a client comes from, for every choice of sources, against the order in words."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from oncegate.gateway.client.profiles import ENDPOINT_DEFAULT, Profile, settle
from oncegate.gateway.client.settings import TIMEOUT_S_DEFAULT

SETTINGS = ("endpoints", "token", "token_file", "ca_file", "timeout_s")
SEEN: list[set[str]] = [
    set(), {"token"}, {"token_file"}, {"ca_file", "timeout_s"}, {"endpoints", "token_file"}, set(SETTINGS)
]  # fmt: skip


def _of(source: str, names: set[str]) -> dict[str, object]:
    """Return these settings, each with a value that only this source has."""
    seconds = {"given": 1.0, "environment": 2.0, "named": 3.0, "usual": 4.0}
    values = {"endpoints": [f"http://{source}:1"], "timeout_s": seconds[source]}
    return {name: values.get(name, f"/{source}/{name}") for name in names}


@pytest.mark.parametrize("chosen", ["argument", "variable", "default", "none"])
def test_each_setting_is_of_the_first_source_that_has_it_and_no_secret_of_a_cluster_nobody_meant(
    tmp_path: Path, chosen: str
) -> None:
    """``token`` and ``token_file`` are one setting; what belongs to other endpoints counts for nothing."""
    file = tmp_path / "profiles.toml"
    for mine, theirs, named in product(SEEN, SEEN, SEEN if chosen in ("argument", "variable") else SEEN[-1:]):
        given, environment = _of("given", mine), _of("environment", theirs)
        profiles = {"named": _of("named", named), "usual": _of("usual", set(SETTINGS))}
        lines = [] if chosen == "none" else ['default = "usual"']
        for profile, found in profiles.items():
            lines += [f"[{profile}]", *(f"{name} = {value!r}" for name, value in found.items())]
        file.write_text("\n".join(lines))
        variables = {f"ONCEGATE_{name.upper()}": str(value) for name, value in environment.items()}
        if "endpoints" in theirs:
            variables["ONCEGATE_ENDPOINTS"] = " http://environment:1 ,"
        if chosen in ("variable", "argument"):
            variables["ONCEGATE_PROFILE"] = "named" if chosen == "variable" else "usual"
        name = "named" if chosen == "argument" else None
        in_file = {"none": {}, "default": profiles["usual"]}.get(chosen, profiles["named"])
        if "endpoints" in mine and name is None:
            sources = [given]
        elif "endpoints" in theirs and chosen == "default":
            sources = [given, environment]
        else:
            sources = [given, environment, in_file]
        expected: dict[str, object] = {"endpoints": [ENDPOINT_DEFAULT], "timeout_s": TIMEOUT_S_DEFAULT}
        for source in reversed(sources):
            if {"token", "token_file"} & set(source):
                expected = {key: value for key, value in expected.items() if not key.startswith("token")}
            expected |= source
        settled = settle(Profile(**given), name, variables, file)  # type: ignore[arg-type]
        for setting in SETTINGS:
            assert getattr(settled, setting) == expected.get(setting), (setting, mine, theirs, named)
