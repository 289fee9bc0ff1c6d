"""The keyed MAC of the frames of one connection, in one direction; pure, no sockets.

AES-256-GMAC under a key of this connection and direction alone; the number of the frame is the nonce and is not sent:
both sides count. So a frame that was changed, left out, sent again or sent out of order, and one of another connection
or of the other direction, does not fit, and the connection is closed. It proves and does not hide: who is to read
nothing on the way needs TLS. Read next: :mod:`oncegate.consensus.net.wire`.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from oncegate.consensus.errors import ProtocolError

TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12


class Seal:
    """Makes the tags of one direction at its sender, or checks them at its receiver."""

    __slots__ = ("_cipher", "_frames")

    def __init__(self, key: bytes) -> None:
        """``key`` has 32 bytes and is never used for another connection or direction: its nonces begin at zero."""
        self._cipher = AESGCM(key)
        self._frames = 0

    def tag(self, body: bytes) -> bytes:
        """Return the tag of the next frame."""
        return self._cipher.encrypt(self._next(), b"", body)

    def check(self, body: bytes | memoryview, tag: bytes) -> None:
        """Take the next frame; raises ProtocolError if it is not the one that was sent."""
        try:
            self._cipher.decrypt(self._next(), tag, body)
        except InvalidTag:
            raise ProtocolError("a frame was changed, left out or sent again on the way") from None

    def _next(self) -> bytes:
        nonce = self._frames.to_bytes(_NONCE_BYTES, "little")
        self._frames += 1
        return nonce
