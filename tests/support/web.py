"""A web in memory: what each URL answers, redirects included, and who asked for what."""

from collections.abc import Mapping

from toolgate.core.errors import ToolgateError
from toolgate.core.urls import join, parse_url
from toolgate.web.web import Blocked, Granted, WebRequest, WebResponse, any_host


class FakeWeb:
    def __init__(self, answers: Mapping[str, WebResponse | ToolgateError]) -> None:
        self.answers = dict(answers)
        self.asked: list[WebRequest] = []

    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        url, method, body = parse_url(request.url), request.method, request.body
        while True:
            if not granted(url, method):
                raise Blocked(str(url), "not a host that was granted")
            self.asked.append(WebRequest(str(url), method, request.headers, body))
            answer = self.answers.get(str(url), Blocked(str(url), "not scripted"))
            if isinstance(answer, ToolgateError):
                raise answer
            if not answer.header("location"):
                return answer
            url = join(url, answer.header("location"))
            if method == "POST" and answer.status in {301, 302, 303}:
                method, body = "GET", b""


def page(url: str, body: bytes = b"", *, status: int = 200, **headers: str) -> WebResponse:
    return WebResponse(url, status, tuple(headers.items()), body, truncated=False)
