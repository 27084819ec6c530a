"""The log's formats: what C2SP's documents say, and that no byte can change unnoticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.errors import Invalid
from toolgate.evidence import checkpoints
from toolgate.evidence import tree as evidence
from toolgate.evidence.checkpoints import ENTRIES, Checkpoint, Tile, VerifierKey
from toolgate.evidence.signer import Ed25519Signer, check_signature

SIGNER = Ed25519Signer(b"\x07" * 32, name="example.com/log")
CHECKPOINT = Checkpoint("example.com/log", 20852163, bytes(range(32)))
NOTE = checkpoints.sign_note(CHECKPOINT.text(), key=SIGNER.key, sign=SIGNER.sign)


def test_a_note_signed_by_another_implementation_is_opened() -> None:
    key = VerifierKey.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n"
    )
    signature = (
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotp"
        "RZb6KE6RyyBwJnAM=\n"
    )
    assert checkpoints.open_note(f"{text}\n{signature}", key=key, check=check_signature) == text


def test_a_checkpoint_is_three_lines_and_a_signature_and_reads_back() -> None:
    lines = NOTE.split("\n")
    assert lines[:2] == ["example.com/log", "20852163"]
    assert lines[3] == ""
    assert lines[4].startswith("— example.com/log ")
    assert checkpoints.open_checkpoint(NOTE, key=SIGNER.key, check=check_signature) == CHECKPOINT


def test_a_verifier_key_reads_back_from_its_text() -> None:
    assert VerifierKey.parse(str(SIGNER.key)) == SIGNER.key


def test_no_byte_of_a_checkpoint_can_be_changed() -> None:
    raw = NOTE.encode()
    for position in range(len(raw)):
        for change in (1, 2, 4, 8, 32, 128, 255):
            changed = bytearray(raw)
            changed[position] ^= change
            with pytest.raises((Invalid, UnicodeDecodeError)):
                checkpoints.open_checkpoint(changed.decode(), key=SIGNER.key, check=check_signature)


def test_a_byte_more_or_less_spoils_a_checkpoint() -> None:
    raw = NOTE
    for position in range(len(raw) + 1):
        for changed in (
            raw[:position] + raw[position + 1 :],
            raw[:position] + "\n" + raw[position:],
        ):
            if changed != raw:
                with pytest.raises(Invalid):
                    checkpoints.open_checkpoint(changed, key=SIGNER.key, check=check_signature)


def test_no_character_of_a_verifier_key_can_be_changed() -> None:
    text = str(SIGNER.key)
    for position in range(len(text)):
        changed = text[:position] + chr(ord(text[position]) ^ 1) + text[position + 1 :]
        with pytest.raises(Invalid):
            VerifierKey.parse(changed)


def test_a_witness_may_sign_too_but_does_not_count() -> None:
    witness = Ed25519Signer(b"\x08" * 32, name="witness.example")
    other = checkpoints.sign_note(CHECKPOINT.text(), key=witness.key, sign=witness.sign)
    both = NOTE + other.rpartition("\n\n")[2]
    assert checkpoints.open_checkpoint(both, key=SIGNER.key, check=check_signature) == CHECKPOINT
    with pytest.raises(Invalid):
        checkpoints.open_checkpoint(other, key=SIGNER.key, check=check_signature)


def test_a_checkpoint_of_another_log_is_refused_though_the_key_is_right() -> None:
    text = Checkpoint("example.com/other", 1, bytes(32)).text()
    note = checkpoints.sign_note(text, key=SIGNER.key, sign=SIGNER.sign)
    with pytest.raises(Invalid):
        checkpoints.open_checkpoint(note, key=SIGNER.key, check=check_signature)


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 1234), "tile/0/x001/234"),
        (Tile(1, 1234067), "tile/1/x001/x234/067"),
        (Tile(0, 273, 112), "tile/0/273.p/112"),
        (Tile(ENTRIES, 5), "tile/entries/005"),
        (Tile(ENTRIES, 1005, 1), "tile/entries/x001/005.p/1"),
    ],
)
def test_tiles_have_the_paths_of_c2sp(tile: Tile, path: str) -> None:
    assert tile.path == path
    assert Tile.parse(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/1", "tile/00/001", "tile/0/x000/001", "tile/0/001.p/256", "tile/0/001.p/0",
        "tile/0/001.p/01", "tile/-1/001", "tile/0/../001", "tile/0/001/", "/tile/0/001", "tile/0/x001",
    ],
)  # fmt: skip
def test_other_spellings_of_a_tile_are_refused(path: str) -> None:
    with pytest.raises(Invalid):
        Tile.parse(path)


@given(st.integers(0, 10**12), st.integers(-1, 63), st.integers(1, 256))
def test_every_tile_reads_back_from_its_path(index: int, level: int, width: int) -> None:
    tile = Tile(level, index, width)
    assert Tile.parse(tile.path) == tile


def test_a_tree_of_70000_has_the_tiles_that_c2sp_counts() -> None:
    rows: dict[int, list[Tile]] = {}
    for tile in checkpoints.tiles_of(70_000):
        rows.setdefault(tile.level, []).append(tile)
    assert len(rows[0]) == 274
    assert rows[0][-1].width == 112
    assert [tile.width for tile in rows[1]] == [256, 17]
    assert [tile.width for tile in rows[2]] == [1]
    assert len(rows[ENTRIES]) == 274
    assert [tile.path for tile in checkpoints.tiles_of(256)] == [
        "tile/entries/000",
        "tile/0/000",
        "tile/1/000.p/1",
    ]


@given(st.integers(1, 3000), st.data())
def test_proofs_out_of_tiles_verify(size: int, data: st.DataObject) -> None:
    leaves = [evidence.leaf_hash(number.to_bytes(4, "big")) for number in range(size)]
    tree = evidence.Tree()
    rows: dict[int, list[bytes]] = {}
    for leaf in leaves:
        for level, found in enumerate(tree.append(leaf)):
            if level % checkpoints.TILE_HEIGHT == 0:
                rows.setdefault(level // checkpoints.TILE_HEIGHT, []).append(found)

    def read(tile: Tile) -> bytes:
        start = tile.index * 256
        assert len(rows[tile.level][start : start + 256]) >= tile.width
        return b"".join(rows[tile.level][start : start + tile.width])

    hash_at = checkpoints.hash_at_tiles(size, read)
    index = data.draw(st.integers(0, size - 1))
    proof = evidence.inclusion_proof(index, size=size, hash_at=hash_at)
    assert evidence.includes(tree.root(), size=size, leaf=leaves[index], index=index, proof=proof)
    old = data.draw(st.integers(1, size))
    assert evidence.extends(
        tree.root(),
        size=size,
        old_root=evidence.root_of(leaves[:old]),
        old_size=old,
        proof=evidence.consistency_proof(old, size=size, hash_at=hash_at),
    )
    assert evidence.Tree.stored(size, hash_at).root() == tree.root()


@given(st.lists(st.binary(max_size=300)))
def test_a_bundle_reads_back(entries: list[bytes]) -> None:
    assert checkpoints.decode_bundle(checkpoints.encode_bundle(entries)) == entries


@pytest.mark.parametrize("content", [b"\x00", b"\x00\x02a", b"\x00\x01a\x00"])
def test_a_bundle_that_was_cut_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid):
        checkpoints.decode_bundle(content)
