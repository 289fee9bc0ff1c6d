"""One version, written in one place, and the same wherever somebody looks for it."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

import oncegate
from oncegate import Client
from oncegate.gateway.local import blocking_http
from oncegate.testing import FakeGateway
from tests.conftest import Api

ROOT = Path(__file__).parents[2]
PRODUCT = ("oncegate", "gateway", "consensus", "flows", "proof", "rifl", "spark_sink", "stores")


def test_version_of_the_code_is_that_of_the_package_and_is_written_once() -> None:
    assert oncegate.__version__ == version("oncegate")
    written = [
        str(path.relative_to(ROOT))
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        if oncegate.__version__ in path.read_text()
        and any(isinstance(node, ast.Constant) and node.value == oncegate.__version__ for node in _nodes(path))
    ]
    assert written == ["oncegate/version.py"]
    assert re.search(r'^dynamic = \["version"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


async def test_a_node_tells_its_version_in_status_metrics_and_description(api: Api) -> None:
    assert (await api.call("GET", "/v1/cluster"))[2]["version"] == oncegate.__version__
    assert (await api.call("GET", "/openapi.json"))[2]["info"]["version"] == oncegate.__version__
    assert f'oncegate_build_info{{version="{oncegate.__version__}",' in (await api.call("GET", "/metrics"))[2].decode()


def test_pages_install_the_wheel_of_this_version() -> None:
    for page in ("deploy.md", "releasing.md"):
        named = re.findall(r"pipx? install '(\S+)'", (ROOT / "docs" / page).read_text())
        assert [Path(one).name for one in named] == [f"oncegate-{oncegate.__version__}-py3-none-any.whl[server]"], page


def test_command_tells_the_version_with_and_without_its_extra() -> None:
    said = f"oncegate {oncegate.__version__}\n"
    for before in ("", "sys.modules['typer'] = None; "):
        called = "sys.argv[1:] = ['--version']; from oncegate.gateway.cli.main import main; main()"
        program = f"import sys; {before}{called}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


async def test_each_request_of_sdk_and_command_says_which_version_sent_it(fake: FakeGateway) -> None:
    seen: dict[str, str] = {}

    async def look(request: web.Request) -> None:
        seen[request.path] = request.headers.get("User-Agent", "none")

    fake.nodes[0].before = look
    async with Client(fake.endpoints) as client, client.session() as session:
        await session.put("rows", "k", 1)  # directly
        async for _ in client.watch("rows", prefix="k", from_commit=0):  # by aiohttp
            break
    sdk = dict(seen)
    assert {"/v1/operations", "/v1/tables/rows/watch"} <= set(sdk)
    assert set(sdk.values()) == {f"oncegate-python/{oncegate.__version__}"}
    seen.clear()
    await asyncio.to_thread(blocking_http.get_json, f"{fake.endpoints[0]}/v1/cluster")
    assert seen == {"/v1/cluster": f"oncegate-command/{oncegate.__version__}"}
