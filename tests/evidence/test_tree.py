"""The tree against RFC 6962's own recursive definitions, written out naively here."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.evidence import tree as evidence
from toolgate.evidence.tree import Tree

LIMIT = 300


def naive_root(records: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1."""
    if not records:
        return hashlib.sha256(b"").digest()
    if len(records) == 1:
        return hashlib.sha256(b"\x00" + records[0]).digest()
    k = naive_split(len(records))
    return hashlib.sha256(b"\x01" + naive_root(records[:k]) + naive_root(records[k:])).digest()


def naive_split(count: int) -> int:
    k = 1
    while k * 2 < count:
        k *= 2
    return k


def naive_path(index: int, records: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1."""
    if len(records) == 1:
        return []
    k = naive_split(len(records))
    if index < k:
        return [*naive_path(index, records[:k]), naive_root(records[k:])]
    return [*naive_path(index - k, records[k:]), naive_root(records[:k])]


def naive_consistency(old: int, records: list[bytes], *, whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962, section 2.1.2."""
    if old == len(records):
        return [] if whole else [naive_root(records)]
    k = naive_split(len(records))
    if old <= k:
        return [*naive_consistency(old, records[:k], whole=whole), naive_root(records[k:])]
    return [*naive_consistency(old - k, records[k:], whole=False), naive_root(records[:k])]


RECORDS = [f"record {number}".encode() * (number % 5) for number in range(LIMIT)]


class Stored:
    """All subtree hashes of a tree, as appending it completes them."""

    def __init__(self, records: list[bytes]) -> None:
        self.tree = Tree()
        self.hashes: dict[tuple[int, int], bytes] = {}
        self.roots = [self.tree.root()]
        for index, record in enumerate(records):
            for level, found in enumerate(self.tree.append(evidence.leaf_hash(record))):
                self.hashes[level, index >> level] = found
            self.roots.append(self.tree.root())

    def hash_at(self, level: int, index: int) -> bytes:
        return self.hashes[level, index]


STORED = Stored(RECORDS)


def test_the_empty_tree_has_the_hash_of_nothing_as_its_root() -> None:
    assert Tree().root() == bytes.fromhex(
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def test_a_single_empty_record_has_the_root_that_every_rfc_6962_log_has() -> None:
    assert evidence.root_of([evidence.leaf_hash(b"")]) == bytes.fromhex(
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    )


def test_roots_of_all_sizes_are_those_of_the_recursive_definition() -> None:
    for size in range(LIMIT + 1):
        assert STORED.roots[size] == naive_root(RECORDS[:size])


def test_a_tree_read_back_from_stored_hashes_goes_on_as_if_it_had_never_stopped() -> None:
    for size in range(LIMIT):
        tree = Tree.stored(size, STORED.hash_at)
        assert tree.root() == STORED.roots[size]
        tree.append(evidence.leaf_hash(RECORDS[size]))
        assert tree.root() == STORED.roots[size + 1]


def test_a_tree_does_not_take_an_edge_that_does_not_fit_its_size() -> None:
    with pytest.raises(ValueError, match="edge"):
        Tree(size=3, edge=[b"\x00" * 32])


@given(st.integers(1, LIMIT), st.data())
def test_inclusion_proofs_of_all_sizes_are_the_rfcs_and_verify(
    size: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, size - 1))
    proof = evidence.inclusion_proof(index, size=size, hash_at=STORED.hash_at)
    assert proof == naive_path(index, RECORDS[:size])
    leaf = evidence.leaf_hash(RECORDS[index])
    root = STORED.roots[size]
    assert evidence.includes(root, size=size, leaf=leaf, index=index, proof=proof)


def test_every_leaf_of_every_tree_has_a_proof_that_verifies() -> None:
    leaves = [evidence.leaf_hash(record) for record in RECORDS]
    for size in range(1, LIMIT + 1):
        for index in range(size):
            proof = evidence.inclusion_proof(index, size=size, hash_at=STORED.hash_at)
            assert evidence.includes(
                STORED.roots[size], size=size, leaf=leaves[index], index=index, proof=proof
            )


def test_every_older_tree_is_shown_to_be_the_beginning_of_every_newer() -> None:
    for size in range(1, LIMIT + 1):
        for old in range(1, size + 1):
            proof = evidence.consistency_proof(old, size=size, hash_at=STORED.hash_at)
            assert evidence.extends(
                STORED.roots[size],
                size=size,
                old_root=STORED.roots[old],
                old_size=old,
                proof=proof,
            )


@given(st.integers(1, LIMIT), st.data())
def test_consistency_proofs_are_the_rfcs(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, size))
    proof = evidence.consistency_proof(old, size=size, hash_at=STORED.hash_at)
    assert proof == naive_consistency(old, RECORDS[:size])


@given(st.integers(2, LIMIT), st.randoms(use_true_random=False))
def test_an_inclusion_proof_with_anything_changed_is_refused(
    size: int, chance: random.Random
) -> None:
    index = chance.randrange(size)
    proof = evidence.inclusion_proof(index, size=size, hash_at=STORED.hash_at)
    leaf = evidence.leaf_hash(RECORDS[index])
    root = STORED.roots[size]

    def holds(**changed: object) -> bool:
        claim = {"size": size, "leaf": leaf, "index": index, "proof": proof} | changed
        return evidence.includes(root, **claim)  # type: ignore[arg-type]

    assert holds()
    position = chance.randrange(len(proof))
    assert not holds(leaf=flip(leaf, chance))
    assert not holds(
        proof=[*proof[:position], flip(proof[position], chance), *proof[position + 1 :]]
    )
    assert not holds(proof=proof[:-1])
    assert not holds(proof=[*proof, leaf])
    assert not holds(index=size)
    assert not holds(index=-1)
    other = chance.randrange(size)
    assert other == index or not holds(index=other)
    assert not evidence.includes(flip(root, chance), size=size, leaf=leaf, index=index, proof=proof)


@given(st.integers(2, LIMIT), st.randoms(use_true_random=False))
def test_a_consistency_proof_with_anything_changed_is_refused(
    size: int, chance: random.Random
) -> None:
    old = chance.randrange(1, size)
    proof = evidence.consistency_proof(old, size=size, hash_at=STORED.hash_at)
    claim = {"size": size, "old_root": STORED.roots[old], "old_size": old, "proof": proof}

    def holds(**changed: object) -> bool:
        return evidence.extends(STORED.roots[size], **(claim | changed))  # type: ignore[arg-type]

    assert holds()
    position = chance.randrange(len(proof))
    assert not holds(old_root=flip(STORED.roots[old], chance))
    assert not holds(
        proof=[*proof[:position], flip(proof[position], chance), *proof[position + 1 :]]
    )
    assert not holds(proof=proof[:-1])
    assert not holds(proof=[*proof, proof[0]])
    assert not holds(old_size=0)
    assert not holds(old_size=size)
    assert not holds(old_size=size + 1)


def test_no_proof_is_made_for_what_is_not_in_the_tree() -> None:
    for index in (-1, 3):
        with pytest.raises(ValueError, match="no leaf"):
            evidence.inclusion_proof(index, size=3, hash_at=STORED.hash_at)
    for old in (0, 4):
        with pytest.raises(ValueError, match="no tree"):
            evidence.consistency_proof(old, size=3, hash_at=STORED.hash_at)


def flip(value: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(value))
    changed = bytearray(value)
    changed[position] ^= 1 << chance.randrange(8)
    return bytes(changed)
