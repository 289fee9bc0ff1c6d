"""Tables on a terminal: what writers put into keys is neither markup nor a command there."""

from __future__ import annotations

import pytest
from aiohttp import web
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.gateway.cli.output import failed, say, show
from oncegate.gateway.local.blocking_http import RequestRefused
from oncegate.testing import FakeCluster


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("[/x]", "[/x]"),
        ("[red]a[/red]", "[red]a[/red]"),
        ("[link=http://x]y[/link]", "[link=http://x]y[/link]"),
        (":smile:", ":smile:"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m\r\x7f", "\\x9b31m\\r\\x7f"),
        ("\u202eabc", "\\u202eabc"),
        ("müßig 漢字", "müßig 漢字"),
    ],
)
def test_a_cell_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], cell: str, shown: str) -> None:
    show(("key",), [[cell]])
    assert shown in [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_what_a_node_says_is_no_command_for_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    detail = "\x1b]0;owned\x07\x1b[2Jhello\u202e"
    assert failed(RequestRefused(f"CONFLICT: {detail}"), 1).exit_code == 1
    say(f"asking {detail}")
    shown = capsys.readouterr()
    assert shown.err == "oncegate: CONFLICT: \\x1b]0;owned\\x07\\x1b[2Jhello\\u202e\n"
    assert shown.out == "asking \\x1b]0;owned\\x07\\x1b[2Jhello\\u202e\n"


def test_no_refusal_of_a_node_reaches_the_terminal_raw() -> None:
    with FakeCluster() as fake:
        refusal = {"type": "about:blank", "title": "no", "status": 409, "code": "CONFLICT", "retryable": False}
        refusal |= {"detail": "\x1b[2Jhello", "outcome": "not_applied"}

        async def refuse(_: web.Request) -> web.StreamResponse:
            return web.json_response(refusal, status=409, content_type="application/problem+json")

        for node in fake.gateway.nodes:
            node.before = refuse
        for words in (["status"], ["table", "list"], ["get", "rows", "k"], ["put", "rows", "k", "1"]):
            ran = CliRunner().invoke(app, [*words, "--endpoint", fake.endpoints[0]])
            assert ran.exit_code != 0
            assert "\\x1b[2Jhello" in ran.stderr, words
            assert "\x1b" not in ran.output, words
