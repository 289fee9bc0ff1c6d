"""How long a value must be in canonical JSON at least, told from its bytes without building it.

Owns: a lower bound that never refuses what fits, so that a value of a million empty lists costs a look at its bytes
and no million objects. Pure. An object of Python is some hundred times as large as the byte that asks for it, and no
thread but the one that builds it runs meanwhile. Read next: :func:`oncegate.gateway.http.request_bodies.value`.
"""

from __future__ import annotations

from typing import Final

# Lengths in bytes of what follows the first byte of a msgpack item (specification, *Formats*): 0xc0 to 0xdf.
_SCALARS: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
    0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Texts, bytes and extensions: the length of their length."""
_CONTAINERS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def is_over(sent: bytes, bytes_max: int, *, packed: bool) -> bool:
    """Tell whether a value is certainly over ``bytes_max`` in canonical JSON; ``packed``: it is msgpack, else JSON.

    What is neither has no canonical form; the answer means nothing then. A repeated name in a JSON object counts each
    time. Time in proportion to ``sent``; of msgpack in proportion to its items, and to ``bytes_max`` at most.
    """
    if packed:
        return _is_msgpack_over(sent, bytes_max)
    # These characters are themselves in canonical form too, in texts and outside.
    return sum(map(sent.count, (b",", b"[", b"]", b"{", b"}"))) > bytes_max


def _is_msgpack_over(sent: bytes, bytes_max: int) -> bool:
    at = 0
    least = -1  # the last item has nothing to be separated from
    end = len(sent)
    while at < end and least <= bytes_max:
        head = sent[at]
        at += 1
        if head < 0x80 or head >= 0xE0:
            least += 2  # a digit and what separates it from the next item
        elif head < 0xA0:
            least += 2 if head & 0x0F else 3  # brackets; an item's separator may stand for the container's own
        elif head < 0xC0:
            at += head & 0x1F
            least += 3 + (head & 0x1F)
        elif head in _SCALARS:
            at += _SCALARS[head]
            least += 2
        elif head in _SIZED:
            width = _SIZED[head]
            size = int.from_bytes(sent[at : at + width], "big")
            at += width + size
            least += 2 + (size if head >= 0xD9 else 0)
        else:
            at += _CONTAINERS.get(head, 0)
            least += 2
    return least > bytes_max
