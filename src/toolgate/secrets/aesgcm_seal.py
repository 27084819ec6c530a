"""The seal as AES-256-GCM under a key that is kept in TOOLGATE_HOME, for its owner alone."""

import os
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Damaged
from toolgate.core.randomness import Randomness

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


class AesGcmSeal:
    def __init__(self, key: bytes, *, kept_in: str = "its file") -> None:
        self._cipher = AESGCM(key)
        self._kept_in = kept_in
        self._random = Randomness()

    @classmethod
    def in_file(cls, path: Path) -> Self:
        """With the key in this file, made where there is none."""
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = os.urandom(KEY_BYTES)
            write_private(path, key)
        if len(key) != KEY_BYTES:
            raise Damaged(f"{path} holds no key of {KEY_BYTES} bytes: restore it from a copy")
        return cls(key, kept_in=str(path))

    def close(self, content: bytes) -> bytes:
        nonce = self._random.take(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, None)

    def open(self, closed: bytes) -> bytes:
        try:
            return self._cipher.decrypt(closed[:NONCE_BYTES], closed[NONCE_BYTES:], None)
        except (InvalidTag, ValueError) as wrong:
            raise Damaged(
                f"a sealed row cannot be opened with the key in {self._kept_in}:"
                " restore that file, or the journal, from a copy"
            ) from wrong


def write_private(path: Path, content: bytes) -> None:
    """A file that is whole or absent, readable by its owner alone."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync_directory(path.parent)
