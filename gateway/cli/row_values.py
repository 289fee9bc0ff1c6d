"""Values of rows on the command line: JSON as an argument or from stdin, text as it is, bytes from and to files.

Owns: the ways to give a value and to print one. Which values there are: docs/SEMANTICS.md.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from oncegate.gateway.cli.output import failed, printable

if TYPE_CHECKING:
    from oncegate.gateway.client import Json

INPUT_BYTES_MAX: Final = 4 * 2**20
"""Of a value or a document that is read: beyond what a request may be, so that the SDK says what is too large."""
STDIN: Final = "-"
AsText = Annotated[bool, typer.Option("--text", help="it is text as it stands, not JSON")]
BytesFrom = Annotated[
    str | None, typer.Option("--bytes-file", metavar="FILE", help="the bytes of this file, or of stdin: -")
]


def given(value: str | None, *, text: bool, bytes_file: str | None = None) -> Json | bytes:
    """Return the value that the arguments of a command give; anything else ends the command as misused.

    Args:
        value: JSON, or with ``text`` any text; ``-``: the same on stdin, where a text ends before its last line end.
        text: whether it is text.
        bytes_file: a file of bytes instead, or ``-``.
    """
    if bytes_file is not None:
        if value is not None or text:
            raise failed("--bytes-file is a value by itself: leave out VALUE and --text", 2)
        return read(bytes_file)
    if value is None:
        raise failed("give a VALUE, - for stdin, or --bytes-file FILE", 2)
    if value == STDIN:
        try:
            value = read(STDIN).decode()
        except UnicodeDecodeError:
            raise failed("stdin is not UTF-8: --bytes-file - takes bytes", 2) from None
        if text:
            return value.removesuffix("\n")
    return value if text else parsed(value, "VALUE")


def parsed(text: str, what: str) -> Json:
    """Return what a text of JSON says; other text ends the command as misused."""
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError) as fault:
        quoted = json.dumps(text if len(text) <= 40 else f"{text[:40]}…", ensure_ascii=False)
        way_out = f"; as text: --text, or '{quoted}'" if what != "the document" else ""
        raise failed(f"{what} is JSON, and this is none: {fault}{way_out}", 2) from None


def read(path: str) -> bytes:
    """Return a file, or stdin for ``-``; one of more than 4 MiB, or that cannot be read, ends the command."""
    try:
        if path == STDIN:
            found = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                found = file.read(INPUT_BYTES_MAX + 1)
    except OSError as fault:
        raise failed(f"{path}: {fault.strerror}", 2) from None
    if len(found) > INPUT_BYTES_MAX:
        raise failed(f"{'stdin' if path == STDIN else path} is over {INPUT_BYTES_MAX} bytes", 2)
    return found


def told(value: Any) -> dict[str, Any]:
    """Return a value as a member of an object of JSON: bytes as base64, and then ``encoding`` says so."""
    if isinstance(value, bytes):
        return {"value": b64encode(value).decode(), "encoding": "base64"}
    return {"value": value}


def print_value(value: Any, *, text: bool = False) -> None:
    """Print a value alone: JSON in one line, or with ``text`` a text as it is, escaped where it goes to a terminal."""
    if isinstance(value, bytes):
        raise failed("the value is bytes: --bytes-file - writes them to stdout, -o json prints them as base64", 2)
    if not text:
        typer.echo(json.dumps(value))
        return
    if not isinstance(value, str):
        raise failed(f"the value is no text: {json.dumps(value)[:200]}", 2)
    typer.echo(printable(value) if sys.stdout.isatty() else value)


def write_bytes(value: Any, path: str) -> None:
    """Write a value of bytes to a file, or to stdout for ``-``; another value ends the command."""
    if not isinstance(value, bytes):
        raise failed(f"the value is not bytes: {json.dumps(value)[:200]}", 2)
    try:
        if path == STDIN:
            sys.stdout.buffer.write(value)
            sys.stdout.buffer.flush()
        else:
            Path(path).write_bytes(value)
    except BrokenPipeError:
        raise
    except OSError as fault:
        raise failed(f"{path}: {fault.strerror}", 2) from None
