"""A file that a page left behind is a stranger's: it is saved, and never shown as one of ours."""

from toolgate.surfaces.gateway.tasks import download_headers


def test_an_artifact_is_a_download_of_no_kind_and_its_name_is_only_a_name() -> None:
    for name in ('a"; b\r\nX: y', "../../etc/passwd", "名字", "", "page.html", "x.svg"):
        headers = dict(download_headers(name))
        assert headers["Content-Type"] == "application/octet-stream", name
        assert headers["Content-Security-Policy"] == "sandbox; default-src 'none'", name
        said = headers["Content-Disposition"]
        assert said.startswith("attachment"), name
        assert said.count('"') == 2, name
        assert not set(said) & set("\r\n/"), name
