"""Ed25519 signatures, and the keys that this installation makes for itself and keeps.

A key is made on first use under `<home>/keys`, readable by its owner alone. Losing it ends what it
can vouch for: a new key is a new log, so a damaged key file is an error and is never replaced.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from toolgate.core.directories import sync_directory
from toolgate.core.errors import Damaged, Misconfigured
from toolgate.evidence.checkpoints import VerifierKey

KEY_SIZE: Final = 32
SIGNING_KEY: Final = "evidence.key"
PUBLIC_KEY: Final = "evidence.vkey"
COMMITMENT_KEY: Final = "commitment.key"
NAME_DIGITS: Final = 16


def check_signature(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Ed25519Signer:
    def __init__(self, seed: bytes, *, name: str = "") -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        public = self._private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        # Without a name of its own the log is named by its key, so that no two are called the same.
        self.key = VerifierKey(name=name or default_name(public), public=public)

    def __repr__(self) -> str:
        return f"Ed25519Signer({self.key})"

    @classmethod
    def in_home(cls, home: Path, *, name: str = "") -> "Ed25519Signer":
        """The installation's signer; its key, and the public text beside it, made where missing."""
        signer = cls(keep_secret(home / "keys" / SIGNING_KEY), name=name)
        public = home / "keys" / PUBLIC_KEY
        text = f"{signer.key}\n"
        if not public.exists() or public.read_text(encoding="utf-8") != text:
            public.write_text(text, encoding="utf-8")
        return signer

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


class Commitments:
    """Keyed commitments: they tell two values apart and prove one later, but give nothing away."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)

    @classmethod
    def in_home(cls, home: Path) -> "Commitments":
        return cls(keep_secret(home / "keys" / COMMITMENT_KEY))

    def __call__(self, value: bytes) -> str:
        made = self._keyed.copy()
        made.update(value)
        return "hmac-sha256:" + made.hexdigest()


def default_name(public: bytes) -> str:
    return f"toolgate/{hashlib.sha256(public).hexdigest()[:NAME_DIGITS]}"


def keep_secret(path: Path) -> bytes:
    """The 32 secret bytes kept in this file; made, with mode 0600, if there is none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _read_secret(path)
    except FileNotFoundError:
        pass
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(KEY_SIZE).hex().encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        path.hardlink_to(made)  # fails where another process was first: then theirs is the key
    except FileExistsError:
        pass
    finally:
        made.unlink()
    for directory in (path.parent, path.parent.parent):  # it may be the first in there
        sync_directory(directory)
    return _read_secret(path)


def _read_secret(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise Misconfigured(f"{path} can be read by others: chmod 600 it, or make a new one")
    try:
        raw = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError as unreadable:
        raise Damaged(f"{path} is not a key") from unreadable
    if len(raw) != KEY_SIZE:
        raise Damaged(f"{path} is not a key of {KEY_SIZE} bytes")
    return raw
