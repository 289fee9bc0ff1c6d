"""How transcripts are written: their scenarios, and the entries and messages of nodes as text."""

from __future__ import annotations

import inspect
import re

import msgspec

from oncegate.consensus import messages
from oncegate.consensus.configuration import Configuration, RaftMember, decode, encode, is_configuration

NO_OP = b"\1"
MEMBER = RaftMember("127.0.0.1", 1)
KINDS = dict(inspect.getmembers(messages, inspect.isclass))
SENT = re.compile(r"(\w+)->(\S+) (.*)")


def scenarios(text):
    """Cut a transcript into (sentence, commands with their outputs)."""
    found = []
    for line in text.splitlines():
        if line.startswith("# "):
            if not found or found[-1][1]:
                found.append(([], []))
            found[-1][0].append(line[2:])
        elif line.startswith("> "):
            found[-1][1].append((line[2:], []))
        elif line.strip():
            found[-1][1][-1][1].append(line)
    return [(" ".join(words), steps) for words, steps in found]


def written(command):
    """Show the bytes of an entry."""
    if command == NO_OP:
        return "no-op"
    if is_configuration(command):
        members = decode(command).members
        return "{" + ",".join(name if member.voter else f"({name})" for name, member in members.items()) + "}"
    return command.decode() if command.isascii() and command.decode().isprintable() else "0x" + command.hex()


def read(text):
    """Read what :func:`written` shows."""
    if text == "no-op":
        return NO_OP
    if text.startswith("{"):
        names = text.strip("{}").split(",")
        voters = {name.strip("()"): not name.startswith("(") for name in names}
        return encode(Configuration({name: msgspec.structs.replace(MEMBER, voter=it) for name, it in voters.items()}))
    return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()


def shown(message):
    """Write a message as its kind and the fields that are not what they are by default."""
    fields = []
    for field in msgspec.structs.fields(message):
        value = getattr(message, field.name)
        if value == field.default:
            continue
        if field.name == "entries":
            value = "[" + " ".join(f"{index}/{term}:{written(command)}" for command, index, term in value) + "]"
        fields.append(f"{field.name}={value}")
    return f"{type(message).__name__}({' '.join(fields)})"


def said(text):
    """Read messages as :func:`shown` writes them."""
    for kind, inside in re.findall(r"(\w+)\((.*?)\)(?= \w+\(|$)", text):
        fields = {}
        for name, entries, value in re.findall(r"(\w+)=(?:\[(.*?)\]|(\S+))", inside):
            if name == "entries":
                found = re.findall(r"(\d+)/(\d+):(\S+)", entries)
                fields[name] = [(read(command), int(index), int(term)) for index, term, command in found]
            else:
                fields[name] = value == "True" if value in ("True", "False") else int(value)
        yield KINDS[kind](**fields)


def shortened(lines):
    """Say once what is said to several peers, in whatever order, or several times."""
    short = []
    for line in lines:
        now, before = SENT.fullmatch(line), SENT.fullmatch(short[-1]) if short else None
        if now and before and (now[1], now[3]) == (before[1], before[3]):
            short[-1] = f"{now[1]}->{','.join(sorted([*before[2].split(','), now[2]]))} {now[3]}"
        elif again := re.fullmatch(re.escape(line) + r"(?: x(\d+))?", short[-1] if short else ""):
            short[-1] = f"{line} x{int(again[1] or 1) + 1}"
        else:
            short.append(line)
    return short
