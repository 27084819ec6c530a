"""The Merkle tree of RFC 6962 over the evidence records: hashing, appending, proving, checking.

A proof needs the hashes of whole subtrees only; where they are stored is the caller's business and
comes in as `HashAt`. Nothing here knows files, signatures or what a record says.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

HASH_SIZE: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()

HashAt = Callable[[int, int], bytes]
"""(level, index) -> the root over leaves [index << level, (index + 1) << level)."""

_sha256 = hashlib.sha256


def leaf_hash(record: bytes) -> bytes:
    return _sha256(b"\x00" + record).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return _sha256(b"\x01" + left + right).digest()


class Tree:
    """A growing tree of which only the right edge is kept: one root per bit of the size."""

    __slots__ = ("_edge", "size")

    def __init__(self, *, size: int = 0, edge: Iterable[bytes] = ()) -> None:
        self.size = size
        self._edge = list(edge)  # roots of the whole subtrees, the largest first
        if len(self._edge) != size.bit_count():
            raise ValueError(f"a tree of {size} has {size.bit_count()} edge hashes")

    @classmethod
    def stored(cls, size: int, hash_at: HashAt) -> "Tree":
        """The tree of that size, its edge read from stored hashes."""
        edge = []
        start = 0
        for level in range(size.bit_length() - 1, -1, -1):
            if size >> level & 1:
                edge.append(hash_at(level, start >> level))
                start += 1 << level
        return cls(size=size, edge=edge)

    def append(self, leaf: bytes) -> list[bytes]:
        """Add a leaf's hash; return the subtree roots it completes, by level from 0 (itself)."""
        completed = [leaf]
        rest = self.size
        while rest & 1:
            leaf = node_hash(self._edge.pop(), leaf)
            completed.append(leaf)
            rest >>= 1
        self._edge.append(leaf)
        self.size += 1
        return completed

    def root(self) -> bytes:
        if not self._edge:
            return EMPTY_ROOT
        root = self._edge[-1]
        for left in reversed(self._edge[:-1]):
            root = node_hash(left, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes."""
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


def inclusion_proof(index: int, *, size: int, hash_at: HashAt) -> list[bytes]:
    """The hashes that lead from one leaf to the root of the tree of that size, lowest first."""
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(_subtree_root(middle, end, hash_at))
            end = middle
        else:
            proof.append(_subtree_root(start, middle, hash_at))
            start = middle
    proof.reverse()
    return proof


def consistency_proof(old: int, *, size: int, hash_at: HashAt) -> list[bytes]:
    """The hashes that show the tree of size `old` to be the beginning of the tree of `size`."""
    if not 0 < old <= size:
        raise ValueError(f"no tree of {old} within a tree of {size}")
    proof: list[bytes] = []
    start, end = 0, size
    old_is_whole = True  # the old tree is this subtree itself, whose hash the checker has
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            proof.append(_subtree_root(middle, end, hash_at))
            end = middle
        else:
            proof.append(_subtree_root(start, middle, hash_at))
            start = middle
            old_is_whole = False
    if not old_is_whole:
        proof.append(_subtree_root(start, end, hash_at))
    proof.reverse()
    return proof


def includes(root: bytes, *, size: int, leaf: bytes, index: int, proof: Sequence[bytes]) -> bool:
    """Whether the proof leads from this leaf hash, at this index, to the root."""
    if not 0 <= index < size:
        return False
    position, last = index, size - 1
    found = leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            found = node_hash(sibling, found)
            while position and not position & 1:
                position >>= 1
                last >>= 1
        else:
            found = node_hash(found, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and found == root


def extends(
    root: bytes, *, size: int, old_root: bytes, old_size: int, proof: Sequence[bytes]
) -> bool:
    """Whether the proof shows the old tree to be the beginning of this one."""
    if not 0 < old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not path:
        return False
    position, last = old_size - 1, size - 1
    while position & 1:
        position >>= 1
        last >>= 1
    found_old = found = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            found_old = node_hash(sibling, found_old)
            found = node_hash(sibling, found)
            while position and not position & 1:
                position >>= 1
                last >>= 1
        else:
            found = node_hash(found, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and found_old == old_root and found == root


def _split(count: int) -> int:
    """The largest power of two below `count`: how many leaves the left subtree has."""
    return 1 << ((count - 1).bit_length() - 1)


def _subtree_root(start: int, end: int, hash_at: HashAt) -> bytes:
    whole: list[bytes] = []
    while start < end:
        level = (end - start).bit_length() - 1
        whole.append(hash_at(level, start >> level))
        start += 1 << level
    root = whole.pop()
    while whole:
        root = node_hash(whole.pop(), root)
    return root
