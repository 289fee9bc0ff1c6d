"""Everything in the documentation that is generated: a new part needs a line here and its markers in the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from oncegate.gateway.docs.pages import Section, table
from oncegate.gateway.http.metrics import METRICS
from oncegate.gateway.node.setting import Setting
from oncegate.gateway.node.settings import SETTINGS
from oncegate.rifl.errors import REGISTRY
from oncegate.rifl.rule import table_as_markdown


def errors() -> Iterator[str]:
    """Return the table of errors, one row a code."""
    rows = (
        [f"`{code}`", str(one.status), one.outcome.value, "yes" if one.retryable else "no", one.title, one.advice]
        for code, one in REGISTRY.items()
    )
    return table(("code", "status", "outcome", "retryable", "meaning", "what to do"), rows)


def settings() -> Iterator[str]:
    """Return the table of settings, one row each."""
    rows = (
        [f"`{one.name}`", f"`{one.flag}`", f"`{one.variable}`", one.default_words, _bounds(one), one.text]
        for one in SETTINGS.values()
    )
    return table(("key", "flag", "variable", "default", "bounds", "what it is"), rows)


def _bounds(one: Setting) -> str:
    return "" if one.least is None else f"{one.least} to {one.most}"


def sample_file() -> Iterator[str]:
    """Return a file with every setting at its default, commented out."""
    for one in SETTINGS.values():
        bounds = _bounds(one)
        yield f"# {one.text[0].upper()}{one.text[1:]}{f' ({bounds})' if bounds else ''}."
        yield f"# {one.name} = {_toml(one)}"
        yield ""


def _toml(one: Setting) -> str:
    # JSON of a text, a number, a truth value or a list of texts is TOML.
    return '""' if one.default is None else json.dumps(one.default, default=str)


def metrics() -> Iterator[str]:
    """Return the table of metrics, in the order of ``/metrics``."""
    rows = ([f"`{one.full_name}`", one.kind, ", ".join(one.labels), one.text] for one in METRICS)
    return table(("name", "kind", "labels", "what it is"), rows)


SECTIONS: Final = (
    Section("docs/SEMANTICS.md", "the apply rule", table_as_markdown),
    Section("docs/SEMANTICS.md", "errors", errors),
    Section("docs/settings.md", "settings", settings),
    Section("docs/metrics.md", "metrics", metrics),
    Section("deploy/oncegate.toml", "settings", sample_file),
)
