"""Private parts of dependencies that the product uses are there, each in one module, with a bounded version.

An upgrade that removes one fails here, with the part's name and the module that needs it.
"""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PRODUCT = ("gateway", "consensus", "flows", "proof", "rifl", "spark_sink", "stores")
EXTRAS = {"aiohttp": "server", "cassandra-driver": "cassandra", "pysyncobj": "server", "typer": "client"}
"""Where pyproject.toml names them."""


class Parts(NamedTuple):
    """What one module uses of a dependency beyond its documented interface."""

    user: str
    distribution: str
    owner: str
    """Class or module, as ``module:name`` or ``module``."""
    names: tuple[str, ...]


PARTS = (
    Parts(
        "gateway/http/hot/connection.py",
        "aiohttp",
        "aiohttp.web_protocol:RequestHandler",
        ("_messages", "_waiter", "_request_count", "force_close"),
    ),
    Parts("gateway/http/exchange.py", "aiohttp", "aiohttp.helpers", ("rfc822_formatted_time",)),
    Parts("gateway/http/exchange.py", "aiohttp", "aiohttp.http", ("SERVER_SOFTWARE",)),
    Parts(
        "gateway/http/admission/connections.py",
        "aiohttp",
        "aiohttp.web_runner:BaseSite",
        ("_server", "_ssl_context", "_backlog"),
    ),
    Parts(
        "stores/cassandra/encoding.py",
        "cassandra-driver",
        "cassandra.query:BatchStatement",
        ("_statements_and_parameters",),
    ),
    Parts(
        "stores/cassandra/encoding.py",
        "cassandra-driver",
        "cassandra.protocol",
        ("BatchMessage", "ProtocolHandler", "write_byte", "write_consistency_level", "write_short"),
    ),
    Parts("consensus/core/library.py", "pysyncobj", "pysyncobj.syncobj", ("createJournal",)),
    Parts("gateway/cli/output.py", "typer", "typer.core", ("TyperCommand", "TyperGroup")),
    Parts("gateway/cli/output.py", "typer", "typer.exceptions", ("TyperException",)),
)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: f"{parts.user} {parts.owner}")
def test_private_part_of_a_dependency_is_there(parts: Parts) -> None:
    module, _, name = parts.owner.partition(":")
    owner = importlib.import_module(module)
    found = set(dir(getattr(owner, name) if name else owner))
    gone = [part for part in parts.names if part not in found]
    assert not gone, f"{parts.distribution} has no {', '.join(gone)} in {parts.owner} any more: see {parts.user}"


@pytest.mark.parametrize("part", ["_messages", "_request_count", "_statements_and_parameters", "typer.core"])
def test_private_part_is_used_in_one_module_only(part: str) -> None:
    (user,) = {parts.user for parts in PARTS if part in parts.names or part == parts.owner}
    found = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py") if _uses(path, part)]
    assert [str(path.relative_to(ROOT)) for path in found] == [user]


def _uses(path: Path, part: str) -> bool:
    text = path.read_text()
    if part not in text:
        return False
    nodes = list(ast.walk(ast.parse(text)))
    reads = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return part in reads or part in {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("distribution", sorted({parts.distribution for parts in PARTS}))
def test_dependency_with_private_parts_in_use_has_an_upper_bound(distribution: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (bound,) = [one for one in map(Requirement, extras[EXTRAS[distribution]]) if one.name == distribution]
    assert Version("999") not in bound.specifier, f"{bound} admits versions that nobody has tried"
