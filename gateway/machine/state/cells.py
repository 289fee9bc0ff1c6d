"""One kind of cell of a saved state: the form of its keys, and how its values are written and read.

Owns: that all integers in keys are big-endian, so that cells lie in the order of their numbers, and that whatever
cannot be read is a StateCorrupt. Which kinds there are is in :mod:`oncegate.gateway.machine.state.layout`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, cast

import msgspec

from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.store import RocksStore

T = TypeVar("T")
V = TypeVar("V")
Ks = TypeVarTuple("Ks")
packed: Final = msgspec.msgpack.Encoder().encode
_OWNER: Final = struct.Struct(">H")


class Cells(Generic[V, *Ks]):
    """The cells whose keys begin with the byte ``prefix``.

    Args:
        prefix: the byte.
        what: what a cell is, for people; the parts of its key follow.
        numbers: the numbers behind the prefix, as :mod:`struct` names them; of several the first is a flow or a table.
        decode: reads a value.
        encode: writes one; as msgpack unless said otherwise.
        text: whether a text follows the numbers, to the end of the key.
    """

    def __init__(
        self,
        prefix: int,
        what: str,
        numbers: str,
        decode: Callable[[bytes], V],
        encode: Callable[[V], bytes] = packed,
        *,
        text: bool = False,
    ) -> None:
        self.prefix = bytes([prefix])
        self.encode = encode
        self._what, self._decode, self._text = what, decode, text
        self._numbers = struct.Struct(">" + numbers)

    def key(self, *parts: *Ks) -> bytes:
        """Return the key of a cell."""
        if not self._text:
            return self.prefix + self._numbers.pack(*parts)
        *numbers, text = cast("tuple[Any, ...]", parts)
        return self.prefix + self._numbers.pack(*numbers) + cast("str", text).encode()

    def under(self, owner: int) -> bytes:
        """Return what the keys of a flow or a table begin with."""
        return self.prefix + _OWNER.pack(owner)

    def decode(self, path: Path, value: bytes) -> V:
        """Read a value that was found in ``path``; raises StateCorrupt."""
        return self._read(path, self._decode, value)

    def get(self, store: RocksStore, *parts: *Ks) -> V | None:
        """Read a cell, None if it is not there; raises StateCorrupt, StoreFailed."""
        value = store.value(self.key(*parts))
        return None if value is None else self.decode(store.path, value)

    def need(self, store: RocksStore, *parts: *Ks) -> V:
        """Read a cell; raises StateCorrupt, also if it is not there, and StoreFailed."""
        if (value := store.value(self.key(*parts))) is None:
            raise StateCorrupt(store.path, " ".join([self._what, *map(str, parts), "is missing"]))
        return self.decode(store.path, value)

    def scan(self, store: RocksStore, owner: int | None = None) -> Generator[tuple[tuple[*Ks], V]]:
        """Read all cells, or those of a flow or a table, with the parts of their keys; raises as :meth:`get`."""
        return self._scan(store, self.prefix if owner is None else self.under(owner))

    def between(self, store: RocksStore, first: int, stop: int) -> Generator[tuple[tuple[*Ks], V]]:
        """Do what :meth:`scan` does with the numbers from ``first`` on, below ``stop``."""
        return self._scan(store, self.prefix, self._numbers.pack(first), self._numbers.pack(stop))

    def _scan(self, store: RocksStore, *where: bytes) -> Generator[tuple[tuple[*Ks], V]]:
        # The store's scan is in no variable: one that an error keeps would lock the store.
        for key, value in store.scan(*where):
            yield self._read(store.path, self._parts, key[1:]), self.decode(store.path, value)

    def _parts(self, key: bytes) -> tuple[*Ks]:
        size = self._numbers.size if self._text else len(key)
        numbers: tuple[Any, ...] = self._numbers.unpack(key[:size])
        return cast("tuple[*Ks]", (*numbers, key[size:].decode()) if self._text else numbers)

    def _read(self, path: Path, reader: Callable[[bytes], T], data: bytes) -> T:
        try:
            return reader(data)
        except (msgspec.DecodeError, struct.error, ValueError) as fault:
            raise StateCorrupt(path, f"{self._what}: {fault}") from None
