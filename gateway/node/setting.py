"""One declared setting: its name in every place where it can be given, its type, its bounds and its description.

Owns: how a flag, an ``ONCEGATE_…`` variable and a key of a TOML file become one checked value, and the message that
answers a wrong name with the right one. Must not know which settings exist: :mod:`oncegate.gateway.node.settings`
declares them. Only the standard library: every command pays for this import.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints

PREFIX: Final = "ONCEGATE_"
_LIKE: Final = 0.6
_MISSPELLED: Final = 0.8
"""How alike two names are, from 0 to 1: so that one is worth a hint, and so that it must be a slip."""
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
            case int() if "bytes" in self.name:
                return f"{self.default / 2**20:g} MiB"
        return str(self.default)

    def checked(self, value: Any) -> Any:
        """Return a value of the right type within the bounds; text is read as a variable's is, and none as no value.

        Raises:
            ValueError: the value is not allowed; the message begins with the setting's name.
        """
        if self.default is None and value in (None, ""):
            return None
        try:
            if isinstance(value, str):
                value = self._read(value)
            elif self.kind is float and type(value) is int:
                value = float(value)
            if not isinstance(value, self.kind) or (self.kind is int and isinstance(value, bool)):
                raise ValueError(f"{value!r} is not {_KINDS[self.kind]}")
            if self.kind is list and not all(isinstance(one, str) for one in value):
                raise ValueError(f"{value!r} is not {_KINDS[list]}")
            if self.least is not None and self.most is not None and not self.least <= value <= self.most:
                raise ValueError(f"{value} is not from {self.least} to {self.most}")
            return value if self.check is None else self.check(value)
        except ValueError as fault:
            raise ValueError(f"{self.name}: {fault}") from None

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


def of_environment(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that variables give.

    Raises:
        ValueError: a variable looks like a misspelled one. Other variables with the prefix belong to other commands, or
            to something else of that name, such as a Kubernetes service ``oncegate``.
    """
    names = {one.variable: one.name for one in settings.values()}
    others = [variable for variable in environment if variable.startswith(PREFIX) and variable not in names]
    wrong = [refusal for variable in others if "?" in (refusal := _unknown(variable, names, _MISSPELLED))]
    if wrong:
        raise ValueError("; ".join(wrong))
    return {name: environment[variable] for variable, name in names.items() if variable in environment}


def of_file(settings: Mapping[str, Setting], path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file.

    Raises:
        ValueError: there is no such file, it is not TOML, or a key is not a setting.
    """
    import tomllib

    if not path.is_file():
        raise ValueError(f"config: {path} is not a file")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:  # not TOML, or not text
        raise ValueError(f"config: {path} is not TOML: {fault}") from None
    wrong = [_unknown(key, settings, _LIKE) for key in found if key not in settings]
    if wrong:
        raise ValueError(f"config: {path}: {'; '.join(wrong)}")
    return found


def _unknown(name: str, known: Iterable[str], alike: float) -> str:
    # The common prefix makes all variables similar, so compare only the part after it.
    bare = {one.removeprefix(PREFIX): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, 1, alike)
    return f"{name} is no setting" + (f"; did you mean {bare[near[0]]}?" if near else "")
