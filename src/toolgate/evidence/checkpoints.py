"""How the evidence log looks to the world: C2SP signed notes, checkpoints, proofs and tiles.

Text and bytes in, text and bytes out: c2sp.org/signed-note, /tlog-checkpoint and /tlog-tiles.
Reading is strict: there is one way to write each thing, so that no byte can change unnoticed.
How a signature is made or checked comes in from outside.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from toolgate.core.errors import Invalid
from toolgate.evidence.tree import HASH_SIZE, HashAt, node_hash

ED25519: Final = b"\x01"  # the signature type of signed-note
TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
ENTRY_LIMIT: Final = 65_535  # a bundle gives an entry's length two bytes

CheckSignature = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, message) -> whether it is right."""

_KEY_NAME: Final = re.compile(r"[^\s+]+")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")  # what fits in 64 bits
_TILE_PATH: Final = re.compile(
    r"tile/(?P<level>entries|0|[1-9][0-9]?)/(?P<index>(?:x[0-9]{3}/)*[0-9]{3})"
    r"(?:\.p/(?P<width>[1-9][0-9]{0,2}))?"
)


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public half of a note key; `str()` gives the `vkey` text."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if _KEY_NAME.fullmatch(self.name) is None:
            raise Invalid("a key's name is not empty and has no space and no plus", field="name")
        if len(self.public) != 32:
            raise Invalid("an Ed25519 public key has 32 bytes", field="public")

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_base64(ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        name, _, rest = text.partition("+")
        key_id, _, encoded = rest.partition("+")
        raw = _unbase64(encoded)
        if raw[:1] != ED25519:
            raise Invalid("not an Ed25519 verifier key", field="vkey")
        key = cls(name=name, public=raw[1:])
        if key_id != key.key_id.hex():
            raise Invalid("the key id is not that of the key", field="vkey")
        return key


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the log vouches for: so many records, and this root over them."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise Invalid("a checkpoint has three lines: origin, size, root", field="checkpoint")
        if _DECIMAL.fullmatch(lines[1]) is None:
            raise Invalid("the tree size is not a plain decimal number", field="checkpoint")
        root = _unbase64(lines[2])
        if len(root) != HASH_SIZE:
            raise Invalid("the root is not a SHA-256 hash", field="checkpoint")
        return cls(origin=lines[0], size=int(lines[1]), root=root)


def sign_note(text: str, *, key: VerifierKey, sign: Callable[[bytes], bytes]) -> str:
    """The text with its signature line."""
    signature = _base64(key.key_id + sign(text.encode()))
    return f"{text}\n— {key.name} {signature}\n"


def open_note(note: str, *, key: VerifierKey, check: CheckSignature) -> str:
    """The note's text, once the key's signature on it is found right; raises Invalid otherwise."""
    text, separator, signatures = note.rpartition("\n\n")
    if not separator or not signatures.endswith("\n"):
        raise Invalid("not a signed note", field="note")
    text += "\n"
    verified = False
    for line in signatures[:-1].split("\n"):
        dash, name, encoded = (*line.split(" "), "", "", "")[:3]
        if dash != "—" or not name or line != f"— {name} {encoded}":
            raise Invalid("not a signature line", field="note")
        raw = _unbase64(encoded)
        if name != key.name or raw[:4] != key.key_id:
            continue  # other signers (witnesses) may be there; they do not count
        if not check(key.public, raw[4:], text.encode()):
            raise Invalid(f"the signature of {name} is wrong", field="note")
        verified = True
    if not verified:
        raise Invalid(f"not signed by {key.name}", field="note")
    return text


def open_checkpoint(note: str, *, key: VerifierKey, check: CheckSignature) -> Checkpoint:
    checkpoint = Checkpoint.parse(open_note(note, key=key, check=check))
    if checkpoint.origin != key.name:
        raise Invalid("the checkpoint is of another log", field="checkpoint")
    return checkpoint


@dataclass(frozen=True, slots=True)
class Tile:
    """One file of the log: 256 hashes of one level, or the records themselves (level -1)."""

    level: int
    index: int
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        level = "entries" if self.level < 0 else str(self.level)
        suffix = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{level}/{_index_path(self.index)}{suffix}"

    @classmethod
    def parse(cls, path: str) -> "Tile":
        match = _TILE_PATH.fullmatch(path)
        if match is None:
            raise Invalid(f"not a tile's path: {path}", field="path")
        level = -1 if match["level"] == "entries" else int(match["level"])
        index = int(match["index"].replace("x", "").replace("/", ""))
        tile = cls(level=level, index=index, width=int(match["width"] or TILE_WIDTH))
        if tile.path != path:
            raise Invalid(f"not the way to write this tile's path: {path}", field="path")
        return tile


ENTRIES: Final = -1


def tiles_of(size: int) -> Iterator[Tile]:
    """Every tile and entry bundle that a log of this size has."""
    yield from _row(ENTRIES, size)
    level, count = 0, size
    while count:
        yield from _row(level, count)
        level, count = level + 1, count >> TILE_HEIGHT


def edge_tiles(size: int) -> Iterator[Tile]:
    """The partial hash tiles of a log of this size: what an append continues."""
    level, count = 0, size
    while count:
        if count % TILE_WIDTH:
            yield Tile(level, count >> TILE_HEIGHT, count % TILE_WIDTH)
        level, count = level + 1, count >> TILE_HEIGHT


def hash_at_tiles(size: int, read: Callable[[Tile], bytes]) -> HashAt:
    """Subtree hashes out of the tiles of a log of this size; inner levels are hashed anew."""

    def hash_at(level: int, index: int) -> bytes:
        row, inner = divmod(level, TILE_HEIGHT)
        count = size >> (row * TILE_HEIGHT)
        first = index << inner
        number = first >> TILE_HEIGHT
        width = min(TILE_WIDTH, count - (number << TILE_HEIGHT))
        content = read(Tile(row, number, width))
        offset = first % TILE_WIDTH
        hashes = split_hashes(content)[offset : offset + (1 << inner)]
        while len(hashes) > 1:
            hashes = [node_hash(*hashes[i : i + 2]) for i in range(0, len(hashes), 2)]
        return hashes[0]

    return hash_at


def split_hashes(content: bytes) -> list[bytes]:
    if len(content) % HASH_SIZE:
        raise Invalid("a tile is a row of whole hashes", field="tile")
    return [content[i : i + HASH_SIZE] for i in range(0, len(content), HASH_SIZE)]


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    for entry in entries:
        parts.append(len(entry).to_bytes(2, "big"))
        parts.append(entry)
    return b"".join(parts)


def decode_bundle(content: bytes) -> list[bytes]:
    entries: list[bytes] = []
    position = 0
    while position < len(content):
        start = position + 2
        position = start + int.from_bytes(content[position:start], "big")
        if start > len(content) or position > len(content):
            raise Invalid("an entry bundle ends in the middle of an entry", field="bundle")
        entries.append(content[start:position])
    return entries


def encode_hashes(hashes: Sequence[bytes]) -> list[str]:
    return [_base64(one) for one in hashes]


def decode_hashes(texts: Sequence[str]) -> list[bytes]:
    hashes = [_unbase64(text) for text in texts]
    if any(len(one) != HASH_SIZE for one in hashes):
        raise Invalid("a proof is a list of SHA-256 hashes", field="proof")
    return hashes


def _row(level: int, count: int) -> Iterator[Tile]:
    for index in range(count >> TILE_HEIGHT):
        yield Tile(level, index)
    if count % TILE_WIDTH:
        yield Tile(level, count >> TILE_HEIGHT, count % TILE_WIDTH)


def _index_path(index: int) -> str:
    path = f"{index % 1000:03d}"
    while index >= 1000:
        index //= 1000
        path = f"x{index % 1000:03d}/{path}"
    return path


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _unbase64(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as unreadable:
        raise Invalid("not base64", field="base64") from unreadable
    if _base64(raw) != text:  # stray bits after the end would let a byte change unnoticed
        raise Invalid("not the canonical base64", field="base64")
    return raw
