"""What a page left behind is a stranger's: it is saved, not shown, unless it is an image."""

import pytest

from toolgate.surfaces.console.browser_tasks import file_answer
from toolgate.tasks.artifacts import Artifact


def left(mime_type: str, name: str = "left") -> Artifact:
    return Artifact("art_1", "run_1", name, mime_type, 4, "sha256:0", created_at=1)


@pytest.mark.parametrize(
    "mime_type", ["text/html", "image/svg+xml", "application/pdf", "text/javascript", ""]
)
def test_a_document_is_a_download_of_no_kind(mime_type: str) -> None:
    answer = file_answer(left(mime_type), b"<svg onload=alert(1)>")
    assert answer.media_type == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("mime_type", ["image/png", "image/jpeg", "image/webp"])
def test_an_image_is_shown_where_nothing_in_it_can_run(mime_type: str) -> None:
    answer = file_answer(left(mime_type), b"....")
    assert answer.media_type == mime_type
    assert answer.headers["content-disposition"].startswith("inline")
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize("name", ['a"; b\r\nX: y', "../../etc/passwd", "名字", ""])
def test_a_name_cannot_say_more_than_a_name(name: str) -> None:
    said = file_answer(left("text/html", name), b"").headers["content-disposition"]
    assert said.count('"') == 2
    assert not set(said) & set("\r\n/")
