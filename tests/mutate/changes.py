"""The small changes of a module's code, as mutmut makes them, and one kind more: a call whose effect is left out.

Left out are changes that no caller can tell: annotations, names of types, what is said to the type checker or the
garbage collector alone, docstrings and the words of an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import libcst as cst
import libcst.matchers as m
from libcst.metadata import (
    CodePosition,
    CodeRange,
    MetadataWrapper,
    PositionProvider,
    WhitespaceInclusivePositionProvider,
)
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

_NEVER = m.MatchCase(
    body=m.IndentedBlock(body=[m.SimpleStatementLine(body=[m.Expr(value=m.Call(func=m.Name("assert_never")))])])
)
_TEXTS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)


class Change(NamedTuple):
    """One changed module.

    ``was`` and ``now`` are the lines that differ, without their indentation; ``number`` counts equal changes of a file,
    from 1. Together with the path they name the change, wherever its line moves to.
    """

    path: str
    was: str
    now: str
    number: int
    line: int
    code: str

    @property
    def name(self) -> tuple[str, str, str, int]:
        return self.path, self.was, self.now, self.number


def changes(path: str, code: str) -> Iterator[Change]:
    """Yield each change of a module's code."""
    operators = [*mutation_operators, (cst.Expr, _without_effect)]
    wrapper = MetadataWrapper(cst.parse_module(code))
    visitor = MutationVisitor(operators, IgnoredCode(set(), set(), set()))
    module = wrapper.visit(visitor)
    places = _Places(code, wrapper)
    seen: Counter[tuple[str, str]] = Counter()
    texts: set[int] = set()
    names = {id(node) for statement in _statements_of_names(module) for node in _within(statement)}
    for mutation in visitor.mutations:
        node = mutation.original_node
        if id(node) in names or _is_wording(node, mutation.mutated_node) or _is_never(node, mutation.mutated_node):
            continue
        if isinstance(node, cst.SimpleString):
            # mutmut also writes it in capitals and in small letters; one other text is enough.
            if id(node) in texts:
                continue
            texts.add(id(node))
        changed = places.exchanged(node, mutation.mutated_node)
        if changed is None:
            changed = deep_replace(module, node, mutation.mutated_node).code
        line, was, now = _difference(code, changed)
        seen[was, now] += 1
        yield Change(path, was, now, seen[was, now], line, changed)


class _Places:
    """Where each node stands in the text: to write a whole module anew for each change takes longer than to try it."""

    def __init__(self, code: str, wrapper: MetadataWrapper) -> None:
        self._code = code
        self._lines = [0, *accumulate(len(line) for line in code.splitlines(keepends=True))]
        self._ranges = [wrapper.resolve(each) for each in (WhitespaceInclusivePositionProvider, PositionProvider)]

    def exchanged(self, was: cst.CSTNode, now: cst.CSTNode | cst.RemovalSentinel) -> str | None:
        """Return the text with a node exchanged; None where that node is not written by itself as it stands there."""
        if not isinstance(now, cst.CSTNode):
            return None
        for ranges in self._ranges:
            place = ranges.get(was)
            if not isinstance(place, CodeRange):
                continue
            first, end = self._offset(place.start), self._offset(place.end)
            if self._code[first:end] == _written(was):
                return self._code[:first] + _written(now) + self._code[end:]
        return None

    def _offset(self, place: CodePosition) -> int:
        return self._lines[place.line - 1] + place.column


def _statements_of_names(module: cst.Module) -> Sequence[cst.CSTNode]:
    """Return what lists names only, ``__slots__`` and ``__all__``, and what names a type for the type checker only."""
    targets = m.AssignTarget(target=m.Name("__slots__") | m.Name("__all__"))
    new_type = m.Call(func=m.Name("NewType") | m.Name("TypeVar"))
    named = m.AnnAssign(annotation=m.Annotation(annotation=m.Name("TypeAlias")))
    union = m.BinaryOperation(left=m.Name() | m.BinaryOperation(), operator=m.BitOr(), right=m.Name())
    alias = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())], value=union)])
    # That a record is frozen is what mypy holds its users to; whether its garbage is collected, nobody can tell.
    kept = m.Arg(keyword=m.Name("frozen") | m.Name("gc"), value=m.Name("True") | m.Name("False"))
    aliases = [each for each in module.body if m.matches(each, alias)]
    return [
        *m.findall(module, m.Assign(targets=[targets]) | m.Assign(value=new_type) | named | kept | _NEVER),
        *aliases,
    ]


def _within(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _within(child)


def _without_effect(node: cst.Expr) -> Iterator[cst.Pass]:
    if not isinstance(node.value, _TEXTS):
        yield cst.Pass()


def _is_wording(was: cst.CSTNode, now: cst.CSTNode) -> bool:
    """Tell whether a change is one of words for people: a text with a space in it, or formatted."""
    if isinstance(was, cst.SimpleString):
        return " " in was.value
    if not (isinstance(was, cst.Call) and isinstance(now, cst.Call)):
        return False
    kept = {id(argument.value) for argument in now.args}
    lost = [argument.value for argument in was.args if id(argument.value) not in kept]
    return bool(lost) and all(isinstance(value, _TEXTS) and (" " in _written(value)) for value in lost)


def _is_never(was: cst.CSTNode, now: cst.CSTNode) -> bool:
    """Tell whether a change leaves out a case that mypy has shown to be impossible."""
    if not (isinstance(was, cst.Match) and isinstance(now, cst.Match)):
        return False
    lost = [case for case in was.cases if not any(case.deep_equals(kept) for kept in now.cases)]
    return bool(lost) and all(m.matches(case, _NEVER) for case in lost)


def _written(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _difference(before: str, after: str) -> tuple[int, str, str]:
    """Return the number of the first line that differs, and the differing lines of both."""
    old, new = before.splitlines(), after.splitlines()
    first = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    last = next(
        (place for place, (a, b) in enumerate(zip(old[first:][::-1], new[first:][::-1], strict=False)) if a != b), 0
    )
    return first + 1, _joined(old[first : len(old) - last]), _joined(new[first : len(new) - last])


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines)
