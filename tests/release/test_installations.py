"""What is installed works: each extra alone, and all of them in the lowest versions that they allow."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate import __version__
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import wait_for
from tests.release.conftest import LOCK, ROOT, Built, Environment, environment, lowest, run

pytestmark = pytest.mark.packaging
USED = {
    "client": "from oncegate import *; import oncegate.sync, oncegate.recipes",
    "server": "import oncegate.gateway.http.server, oncegate.gateway.cli.serve, oncegate.proof.check.runner",
    "testing": "import oncegate.testing, pytest",
    "middleware": "import oncegate.middleware",
    "jwt": "import jwt, cryptography",
    "otel": "import oncegate.gateway.client.tracing, opentelemetry.trace",
    "otlp": "import oncegate.gateway.observability.spans",
    "spark": "import oncegate.spark, oncegate.spark_sink.source, oncegate.spark_sink.jobs.job",
    "cassandra": "import oncegate.stores.cassandra",
}
"""What each extra is for; it is imported where nothing else is installed."""
WITH_COMMAND = {"client", "server", "testing", "middleware", "otel"}

APPLICATION = """
import asyncio, sys
from oncegate import Client, sync

async def main(endpoint):
    async with Client(endpoint) as client, client.session() as session:
        await client.declare_table("seats", kind="resident")
        await client.declare_table("events", kind="stream")
        assert (await session.put("seats", "14C", "ann", if_absent=True)).applied
        assert (await session.increment("seats", "n")).value == 1
        await session.put_many("events", {str(n): {"n": n} for n in range(1000)})
        async with session.transaction() as order:
            order.insert("seats", "14D", "bob").increment("seats", "n", ceiling=2)
        async for change in client.watch("seats", prefix="14", from_commit=0):
            if change.key == "14D":
                break
    with sync.Client(endpoint) as client:
        print("read", client.get("seats", "n").value)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def old(uv: Path, built: Built, folder: Path) -> Environment:
    """Every extra, each dependency in the lowest version, and what this project's tests need beside them."""
    tools = ("hypothesis", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "trustme")
    return lowest(uv, folder / "old", built.wheel, *USED, also=tools)


@contextlib.contextmanager
def node(there: Environment, data: Path) -> Iterator[str]:
    """Run a durable node of an environment; yields its endpoint."""
    http, peer = free_ports(2)
    words = [there.path / "bin/oncegate", "serve", "--member", f"n1=127.0.0.1:{http}:{peer}", "--data-dir", data]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
    with (data.with_suffix(".log")).open("w") as log:
        process = subprocess.Popen([*map(str, words)], stdout=log, stderr=log, env=clean, cwd=there.path)
        try:
            ready = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{http}/readyz', timeout=5).read()"

            def serves() -> bool:
                assert process.poll() is None, data.with_suffix(".log").read_text()
                python = [str(there.path / "bin/python"), "-c", ready]
                return subprocess.run(python, capture_output=True, check=False).returncode == 0

            wait_for(serves, 120, "the node is ready")
            yield f"http://127.0.0.1:{http}"
        finally:
            process.terminate()
            assert process.wait(60) == 0, data.with_suffix(".log").read_text()


@pytest.mark.parametrize("extra", ["none", *USED])
def test_extra_alone_brings_what_it_is_for(extra: str, uv: Path, built: Built, tmp_path: Path) -> None:
    wanted = built.wheel if extra == "none" else f"{built.wheel}[{extra}]"
    there = environment(uv, tmp_path / "venv", "--constraint", LOCK, wanted)
    assert there.oncegate("--version") == f"oncegate {__version__}\n"
    there.python("-W", "error", "-c", USED.get(extra, "import oncegate"))
    if extra in WITH_COMMAND:
        assert "no node answers" in there.oncegate("status", "--endpoint", "http://127.0.0.1:1", code=3)
    else:
        assert f"pip install '{built.wheel}[client]'" in there.oncegate("status", code=1)


def test_source_distribution_is_installed_as_a_tool_and_serves(uv: Path, built: Built, tmp_path: Path) -> None:
    """As pipx does: an environment that nobody sees, and the command on the path."""
    variables = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(uv, "tool", "install", "--quiet", "--constraints", LOCK, f"{built.sdist}[server]", cwd=tmp_path, **variables)
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["oncegate"]
    there = Environment(tmp_path)  # its bin/oncegate
    assert there.oncegate("--version") == f"oncegate {__version__}\n"
    tool = Environment(tmp_path / "tools" / "oncegate")
    with node(tool, tmp_path / "n1") as endpoint:
        assert __version__ in there.oncegate("status", "--endpoint", endpoint)


def test_lowest_versions_serve_an_application_of_the_lowest_client_and_are_verified(
    uv: Path, built: Built, old: Environment, folder: Path, tmp_path: Path
) -> None:
    client = lowest(uv, folder / "old-client", built.wheel, "client")
    with node(old, tmp_path / "n1") as endpoint:
        for there in (client, old):
            if there is client:
                assert there.python("-W", "error", "-c", APPLICATION, endpoint) == "read 2\n"
            told = there.oncegate("explain", "seats/14C", "--endpoint", endpoint)
            assert "put seats/14C: executed" in told
        old.oncegate("snapshot", "save", tmp_path / "backup", "--endpoint", endpoint)
    assert "equal" in old.oncegate("verify", tmp_path / "n1")


def test_every_module_is_imported_in_the_lowest_versions_without_a_warning(old: Environment) -> None:
    program = (
        "import importlib, pkgutil, oncegate\n"
        "names = [one.name for one in pkgutil.walk_packages(oncegate.__path__, 'oncegate.')]\n"
        "[importlib.import_module(name) for name in names if not name.endswith('__main__')]\n"
        "print(len(names) > 300)\n"
    )
    assert old.python("-W", "error", "-c", program) == "True\n"


def test_lowest_versions_refuse_what_the_product_relies_on_them_to_refuse(old: Environment) -> None:
    """Offsets of a column outside of its buffer (pyarrow), and blanks behind a header (aiohttp): see pyproject.toml."""
    files = ("tests/gateway/test_edge_range.py", "tests/gateway/test_hot_framing.py")
    words = ("-q", "-p", "no:cacheprovider", "-k", "offsets or usual_requests", *files)
    assert "5 passed" in old.python("-m", "pytest", *words, cwd=ROOT)
