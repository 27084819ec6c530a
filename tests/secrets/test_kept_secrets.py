"""Keys and tokens that are made once: a power cut right after must not take them back."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toolgate.bootstrap.installation import token
from toolgate.evidence.signer import keep_secret
from toolgate.secrets.aesgcm_seal import AesGcmSeal
from toolgate.secrets.own_tokens import TokenKind
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings

MAKERS: dict[str, Callable[[Path], object]] = {
    "keys/evidence.key": lambda home: keep_secret(home / "keys" / "evidence.key"),
    "seal.key": lambda home: AesGcmSeal.in_file(home / "seal.key"),
    "executor.token": lambda home: token(
        Settings(home=home), TokenKind.EXECUTOR, SecretPatterns(())
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_is_synced_under_its_name_and_not_only_its_content(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        there = (tmp_path / name).exists()
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), there))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    MAKERS[name](tmp_path)
    content, *directories = synced
    assert content[0].parent == (tmp_path / name).parent
    made_in = {(tmp_path / name).parent, tmp_path}  # the directory may be new as well
    assert {directory for directory, there in directories if there} == made_in
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
