"""The seal: what was closed opens again, with the key in its file and no other."""

from pathlib import Path

import pytest

from toolgate.core.errors import Damaged
from toolgate.secrets.aesgcm_seal import AesGcmSeal


def test_what_was_closed_is_opened_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    closed = AesGcmSeal.in_file(file).close(b"a secret")
    assert b"a secret" not in closed
    assert AesGcmSeal.in_file(file).open(closed) == b"a secret"
    assert file.stat().st_mode & 0o077 == 0


def test_who_lost_the_key_is_told_which_file_to_bring_back(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    closed = AesGcmSeal.in_file(file).close(b"a secret")
    file.unlink()
    with pytest.raises(Damaged, match=str(file)):
        AesGcmSeal.in_file(file).open(closed)


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_half_a_key_is_no_key(tmp_path: Path, size: int) -> None:
    file = tmp_path / "seal.key"
    file.write_bytes(b"k" * size)
    with pytest.raises(Damaged, match=str(file)):
        AesGcmSeal.in_file(file)
