"""One declared setting: its name in every place where it can be given, its type, its bounds and its description.

Owns: how a flag, an ``ONCEGATE_…`` variable and a key of a TOML file become one checked value that knows where it came
from, and the message that answers a wrong name with the right one. Must not know which settings exist:
:mod:`oncegate.gateway.node.settings` declares them. Only the standard library: every command pays for this import.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from oncegate.gateway.toml_file import TomlFile, hint, read_toml

PREFIX: Final = "ONCEGATE_"
OF_COMMANDS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("ENDPOINT", "ENDPOINTS", "TOKEN", "TOKEN_FILE", "CA_FILE", "TIMEOUT_S"),
        *("PROFILE", "PROFILES", "LOG", "CONFIG"),
    )
)
"""Variables that the SDK and the commands read: a shell that has them may start a node too."""
_OF_PLATFORMS: Final = re.compile(r"ONCEGATE_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
"""What Kubernetes and Docker tell every container about a service that is called ``oncegate``."""
_WORDS: Final = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True) | dict.fromkeys(
    ("0", "false", "f", "no", "n", "off"), False
)
_KINDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    list: 'a list of texts, in a variable ["…", "…"]',
}

_SIZE: Final = "a whole number of bytes (8 MiB is 8388608)"


class Setting(NamedTuple):
    """The declaration of one setting.

    Attributes:
        name: key in the file; ``ONCEGATE_`` and the name in capitals is the variable.
        kind: bool, int, float, str, Path or list (of texts; JSON in a variable).
        default: None where a setting may have no value.
        text: what it is, for ``--help`` and the documentation.
        least, most: bounds of a number, both inclusive.
        check: returns the value in its normal form; raises ValueError.
        flag: the flag of ``oncegate serve``.
    """

    name: str
    kind: type[Any]
    default: Any
    text: str
    least: float | None
    most: float | None
    check: Callable[[Any], Any] | None
    flag: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def default_words(self) -> str:
        """The default for a reader: bytes in MiB."""
        match self.default:
            case None | []:
                return "none"
            case list():
                return ", ".join(self.default)
            case bool():
                return str(self.default).lower()
            case int() if self.is_size:
                return f"{self.default / 2**20:g} MiB"
        return str(self.default)

    @property
    def is_size(self) -> bool:
        """Whether it is a number of bytes."""
        return self.kind is int and "bytes" in self.name

    def at(self, origin: str) -> str:
        """Return the place where it was given: a flag, a variable, or another origin with its name."""
        return origin if origin in (self.variable, self.flag) else f"{origin}: {self.name}"

    @property
    def bounds(self) -> str:
        """The bounds of a number for a reader; empty without."""
        return "" if self.least is None else f"{self.least} to {self.most}"

    def checked(self, value: Any) -> Any:
        """Return a value of the right type within the bounds; text is read as a variable's is, and none as no value.

        Raises:
            ValueError: the value is not allowed; the message does not say whose value it is.
        """
        if self.default is None and value in (None, ""):
            return None
        if isinstance(value, str):
            value = self._read(value)
        elif self.kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, self.kind) or (self.kind is int and isinstance(value, bool)):
            raise ValueError(f"{value!r} is not {_SIZE if self.is_size else _KINDS[self.kind]}")
        if self.kind is list and not all(isinstance(one, str) for one in value):
            raise ValueError(f"{value!r} is not {_KINDS[list]}")
        if self.least is not None and self.most is not None and not self.least <= value <= self.most:
            raise ValueError(f"{value} is not from {self.least} to {self.most}")
        return value if self.check is None else self.check(value)

    def _read(self, text: str) -> Any:
        if self.kind is bool:
            return _WORDS.get(text.lower(), text)
        try:
            return json.loads(text) if self.kind is list else self.kind(text)
        except ValueError:
            return text  # a wrong type: refused with the same message as other wrong types


def setting(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    most: float | None = None,
    check: Callable[[Any], Any] | None = None,
    flag: str | None = None,
) -> Any:
    """Declare a field of a dataclass as a setting; ``flag`` where it is not made of the field's name."""
    given = {"text": text, "least": least, "most": most, "check": check, "flag": flag}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=given)
    return dataclasses.field(default=default, metadata=given)


def declared(settings: type[Any]) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by name."""
    hints = get_type_hints(settings)
    found = {}
    for field in dataclasses.fields(settings):
        kinds = [kind for kind in get_args(hints[field.name]) or (hints[field.name],) if kind is not type(None)]
        kind = list if hints[field.name] == list[str] else kinds[0]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        given = {**field.metadata, "flag": field.metadata["flag"] or f"--{field.name.replace('_', '-')}"}
        found[field.name] = Setting(field.name, kind, default, **given)
    return found


DEFAULT: Final = "default"


class Given(NamedTuple):
    """A value and where it came from: ``default``, ``FILE:LINE``, a variable or a flag."""

    value: Any
    origin: str


class Gathered(NamedTuple):
    """What all sources together say.

    Attributes:
        settings: each setting, in the order of their declaration.
        faults: what is wrong, each with its place: nothing may start with this.
        unknown: variables with the prefix that belong to nobody and are like no other.
    """

    settings: dict[str, Given]
    faults: list[str]
    unknown: list[str]


def gather(
    settings: Mapping[str, Setting], config: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Gathered:
    """Put the sources together, a flag before a variable before the file before the default; None: not given.

    Never raises for what a source says; a variable that looks misspelled is a fault, and so is an unknown key.
    """
    found: dict[str, Given] = {}
    faults: list[str] = []
    if config is not None:
        try:
            found, faults = _of_file(settings, read_toml(config))
        except FileNotFoundError:
            faults.append(f"config: {config} is not there")
        except ValueError as fault:
            faults.append(f"config: {fault}")
    for one in settings.values():
        if one.variable in environment:
            found[one.name] = Given(environment[one.variable], one.variable)
        if flags.get(one.name) is not None:
            found[one.name] = Given(flags[one.name], one.flag)
    gathered = Gathered({}, faults, [])
    for one in settings.values():
        value, origin = found.get(one.name, (one.default, DEFAULT))
        try:
            gathered.settings[one.name] = Given(one.checked(value), origin)
        except ValueError as fault:
            faults.append(f"{one.at(origin)}: {fault}")
    for variable, near in unknown_variables(settings, environment):
        (faults if near else gathered.unknown).append(f"{variable} is no setting{near}")
    return gathered


def unknown_variables(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield variables with the prefix that nobody reads, each with a hint where one like it is read."""
    known = {one.variable for one in settings.values()} | OF_COMMANDS
    # The common prefix makes all variables similar, so compare only the part after it.
    bare = [one.removeprefix(PREFIX) for one in sorted(known)]
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in known and not _OF_PLATFORMS.fullmatch(variable):
            yield variable, hint(variable.removeprefix(PREFIX), bare).replace("mean ", f"mean {PREFIX}")


def _of_file(settings: Mapping[str, Setting], file: TomlFile) -> tuple[dict[str, Given], list[str]]:
    given = {name: Given(value, file.at(name)) for name, value in file.values.items()}
    wrong = [f"{given[key].origin}: {key} is no setting{hint(key, settings)}" for key in given if key not in settings]
    return {name: one for name, one in given.items() if name in settings}, wrong


def sample(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield the lines of a file with every setting at its default, commented out."""
    for one in settings.values():
        yield f"# {one.text[0].upper()}{one.text[1:]}{f' ({one.bounds})' if one.bounds else ''}."
        # JSON of a text, a number, a truth value or a list of texts is TOML.
        yield f"# {one.name} = {json.dumps(one.default if one.default is not None else '', default=str)}"
        yield ""
