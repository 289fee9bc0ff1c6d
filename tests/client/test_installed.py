"""What an installation brings: SDK and command without the server, and a fixture that pytest finds by itself."""

from __future__ import annotations

import importlib.metadata
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from oncegate import Client, Code, OncegateError, sync
from oncegate.testing import FakeCluster
from oncegate.version import installing
from tests.client.answers import fails

ROOT = Path(__file__).parents[2]
SERVER_ONLY = ["google_crc32c", "numpy", "prometheus_client", "pyarrow", "pydantic_settings"]
SERVER_ONLY += ["pysyncobj", "rocksdict", "structlog", "xxhash"]
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({SERVER_ONLY}))\n"
"""A module that stands for None in ``sys.modules`` is not installed, as far as an import can tell."""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "without", "code"),
    [(["outbox", "--help"], [], 0), (["status", "--endpoint", "http://127.0.0.1:1"], ["msgspec", "rich"], 3)],
    ids=["outbox", "status"],
)
def test_commands_of_clients_import_nothing_of_the_server(words: list[str], without: list[str], code: int) -> None:
    lacking = f"{WITHOUT}sys.modules.update(dict.fromkeys({without}))\nsys.argv = {['oncegate', *words]}"
    done = python(f"{lacking}\nfrom oncegate.gateway.cli.main import main; main()")
    assert done.returncode == code, done.stderr


def test_an_outbox_is_listed_without_the_modules_that_send_it(tmp_path: Path) -> None:
    argv = ["oncegate", "outbox", "ls", str(_outbox(tmp_path / "outbox"))]
    done = python(
        f"import sys; sys.modules['aiohttp'] = None; sys.argv = {argv}; from oncegate.__main__ import main; main()"
    )
    assert (done.returncode, done.stderr) == (0, "0 entries, position null\n")


def test_a_command_of_the_server_says_what_to_install() -> None:
    done = python(f"{WITHOUT}sys.argv = ['oncegate', 'serve']\nfrom oncegate.gateway.cli.main import main; main()")
    assert done.returncode == 2
    assert installing("server") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("without", [WITHOUT, "import sys; sys.modules['aiohttp'] = None\n"], ids=["server", "aiohttp"])
def test_the_fixture_without_its_extra_is_a_missing_module_that_names_it_and_the_rest_can_be_looked_at(
    without: str,
) -> None:
    done = python(f"{without}import oncegate.testing")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError")
    assert installing("testing") in done.stderr
    looked_at = python(
        f"{without}import inspect, oncegate\nassert not hasattr(oncegate, 'testing')\ninspect.getmembers(oncegate)"
    )
    if "aiohttp" not in without:  # the names of the SDK itself need it
        assert looked_at.returncode == 0, looked_at.stderr
        assert python(f"{without}from oncegate import *").returncode == 0


def test_the_command_without_its_extra_says_what_to_install() -> None:
    done = python("import sys; sys.modules['typer'] = None\nimport oncegate.gateway.cli.main")
    assert done.returncode == 1
    assert installing("client") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("told", "command"),
    [
        ('{"url": "file://HERE/my%20checkout", "dir_info": {"editable": true}}', "-e 'HERE/my checkout[server,spark]'"),
        ('{"url": "file://HERE/my%20checkout", "dir_info": {}}', "'HERE/my checkout[server,spark]'"),
        ('{"url": "file://HERE/one.whl", "archive_info": {}}', "'HERE/one.whl[server,spark]'"),
        ('{"url": "file://HERE/gone.whl", "dir_info": {"editable": true}}', "'oncegate[server,spark]'"),
        ('{"url": "https://there/one.whl", "archive_info": {}}', "'oncegate[server,spark] @ https://there/one.whl'"),
        (
            '{"url": "https://there/it", "vcs_info": {"vcs": "git", "commit_id": "1c906e8"}}',
            "'oncegate[server,spark] @ git+https://there/it@1c906e8'",
        ),
        (None, "'oncegate[server,spark]'"),
        ("{", "'oncegate[server,spark]'"),
    ],
    ids=["editable", "checkout", "wheel", "wheel that has gone", "address", "repository", "index", "damaged"],
)
def test_what_is_missing_is_installed_from_where_the_rest_came(
    told: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if told is None else told.replace("HERE", str(tmp_path))

    (tmp_path / "my checkout").mkdir()
    (tmp_path / "one.whl").touch()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Told())
    assert installing("server", "spark") == f"pip install {command.replace('HERE', str(tmp_path))}"


def test_hint_of_this_checkout_names_a_folder_that_pip_installs() -> None:
    path = shlex.split(installing("server"))[-1].removesuffix("[server]")
    assert path == "oncegate" or (Path(path) / "pyproject.toml").is_file() or path.endswith((".whl", ".tar.gz"))


def test_hint_of_code_that_is_not_installed_is_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert installing("otel") == "pip install 'oncegate[otel]'"


@pytest.mark.packaging
def test_a_wheel_with_the_client_extra_serves_a_project_whose_packages_have_our_names(tmp_path: Path) -> None:
    def run(*command: str | Path, code: int = 0) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    names = ("gateway", "consensus", "flows", "rifl", "stores", "proof")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "test_theirs.py").write_text(
        f"import {', '.join(names)}\n\n\ndef test_own_packages():\n"
        f"    assert all(one.OURS for one in ({', '.join(names)}))\n"
    )
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python, oncegate = (tmp_path / "venv/bin" / name for name in ("python", "oncegate"))
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        run(uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT)
    else:
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    if uv.exists():
        run(uv, "pip", "install", "--quiet", "--python", python, f"{wheel}[client]", "pytest")
    else:
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", f"{wheel}[client]", "pytest")
    assert "Outboxes of workers" in run(oncegate, "--help")
    assert "no node answers" in run(oncegate, "status", "--endpoint", "http://127.0.0.1:1", code=3)
    assert "no node answers" in run(oncegate, "explain", "rows/k", "--endpoint", "http://127.0.0.1:1", code=3)
    assert "0 entries" in run(oncegate, "outbox", "ls", _outbox(tmp_path / "outbox"))
    assert f"pip install '{wheel}[server]'" in run(oncegate, "serve", code=2)
    assert run(python, "-c", "from oncegate import *; from oncegate import Client, middleware, sync; help(Client)")
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_theirs.py")
    assert f"pip install '{wheel}[testing]'" in run(python, "-c", "import oncegate.testing", code=1)


def _outbox(path: Path) -> Path:
    from oncegate.gateway.client.outbox_file import OutboxFile

    opened = OutboxFile(path)
    opened.close()
    return path


def test_lease_ends_when_the_test_says_so(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client, client.session(lease_ms=60_000) as session:
        session.put("rows", "k", 1)
        oncegate_cluster.advance(60.0)
        session.put("rows", "k", 2)  # renews
        oncegate_cluster.advance(60.001)
        with fails(Code.SESSION_EXPIRED):
            session.put("rows", "k", 3)
    assert oncegate_cluster.value("rows", "k") == 2
    with pytest.raises(OncegateError):
        oncegate_cluster.value("rows", "none")


async def test_lost_answers_and_stopped_nodes_cost_no_duplicate(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    async with Client(oncegate_cluster.endpoints) as client, client.session() as session:
        oncegate_cluster.lose_answers(2)
        result = await session.increment("rows", "n")
        assert (result.value, result.replayed) == (1, True)
        oncegate_cluster.stop(0)
        assert (await session.increment("rows", "n")).value == 2
        oncegate_cluster.start(0)
        oncegate_cluster.freeze(1)
        oncegate_cluster.thaw(1)
    assert [write.key for write in oncegate_cluster.executed] == ["n", "n"]


def test_plugin_is_found_by_pytest_and_imports_the_sdk_only_when_asked() -> None:
    (found,) = entry_points(group="pytest11", name="oncegate")
    code = f"import {found.value}, sys; sys.exit('oncegate.gateway.client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
