import hashlib
import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolgate.core.errors import Damaged, Misconfigured
from toolgate.evidence.checkpoints import VerifierKey
from toolgate.evidence.signer import (
    Commitments,
    Ed25519Signer,
    check_signature,
    keep_secret,
)


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = Ed25519Signer.in_home(tmp_path)
    second = Ed25519Signer.in_home(tmp_path)
    assert first.key == second.key
    path = tmp_path / "keys" / "evidence.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    public = (tmp_path / "keys" / "evidence.vkey").read_text(encoding="utf-8")
    assert VerifierKey.parse(public.strip()) == first.key


def test_what_one_signs_the_other_checks_and_nothing_else(tmp_path: Path) -> None:
    signer = Ed25519Signer.in_home(tmp_path)
    signature = signer.sign(b"message")
    assert check_signature(signer.key.public, signature, b"message")
    assert not check_signature(signer.key.public, signature, b"massage")
    assert not check_signature(signer.key.public, signature[:-1], b"message")
    assert not check_signature(b"short", signature, b"message")


def test_the_key_is_not_in_the_signers_repr(tmp_path: Path) -> None:
    signer = Ed25519Signer.in_home(tmp_path)
    assert (tmp_path / "keys" / "evidence.key").read_text().strip() not in repr(signer)


def test_many_who_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: keep_secret(tmp_path / "keys" / "k"), range(32)))
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["k"]


@pytest.mark.parametrize("content", ["", "zz" * 32, "00" * 31])
def test_a_damaged_key_is_an_error_and_is_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(Damaged):
        keep_secret(path)
    assert path.read_text() == content


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keep_secret(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(Misconfigured):
        keep_secret(tmp_path / "key")


def test_a_commitment_is_the_hmac_of_the_value_under_the_homes_key(tmp_path: Path) -> None:
    commit = Commitments.in_home(tmp_path)
    key = keep_secret(tmp_path / "keys" / "commitment.key")
    expected = hmac.new(key, b"hunter2", hashlib.sha256).hexdigest()
    assert commit(b"hunter2") == f"hmac-sha256:{expected}"
    assert Commitments(b"\x01" * 32)(b"hunter2") != commit(b"hunter2")
