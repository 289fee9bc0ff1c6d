"""Tables on a terminal: what writers put into keys is neither markup nor a command there."""

from __future__ import annotations

import pytest

from oncegate.gateway.cli.output import show


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
