"""What a process leaves in the temporary directory when it is killed."""

import os
import tempfile
from pathlib import Path

import pytest

from toolgate.core.scratch import make_scratch

NOBODY = 4_999_999  # above every process number that Linux gives


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folders_of_a_process_that_was_killed_go_when_the_next_is_made(tmp_path: Path) -> None:
    abandoned = tmp_path / f"toolgate-reading-{NOBODY}-x"
    (abandoned / "profile").mkdir(parents=True)
    assert make_scratch("reading").is_dir()
    assert not abandoned.exists()


def test_those_of_one_with_the_number_that_we_have_now_go_too(tmp_path: Path) -> None:
    """In a container whoever is started again gets the same number again."""
    abandoned = tmp_path / f"toolgate-reading-{os.getpid()}-1-x"
    abandoned.mkdir()
    stays = [make_scratch("reading"), make_scratch("reading")]
    assert not abandoned.exists()
    assert all(folder.is_dir() for folder in stays)


def test_the_folders_of_those_who_live_and_of_other_kinds_stay(tmp_path: Path) -> None:
    stay = [make_scratch("reading"), tmp_path / f"toolgate-other-{NOBODY}-x", tmp_path / "mine"]
    for folder in stay[1:]:
        folder.mkdir()
    assert make_scratch("reading") not in stay
    assert all(folder.is_dir() for folder in stay)
    assert str(os.getpid()) in stay[0].name
