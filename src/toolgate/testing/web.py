"""A web in memory: what each URL answers, redirects included, and who asked for what."""

from collections.abc import Mapping

from toolgate.domain.errors import ToolgateError
from toolgate.domain.urls import join, parse_url
from toolgate.ports.web import Blocked, Granted, WebRequest, WebResponse, any_host


class FakeWeb:
    def __init__(self, answers: Mapping[str, WebResponse | ToolgateError]) -> None:
        self.answers = dict(answers)
        self.asked: list[WebRequest] = []

    async def fetch(self, request: WebRequest, *, granted: Granted = any_host) -> WebResponse:
        url = parse_url(request.url)
        while True:
            if not granted(url):
                raise Blocked(str(url), "not a host that was granted")
            self.asked.append(WebRequest(str(url), request.method, request.headers, request.body))
            answer = self.answers.get(str(url), Blocked(str(url), "not scripted"))
            if isinstance(answer, ToolgateError):
                raise answer
            if not answer.header("location"):
                return answer
            url = join(url, answer.header("location"))


def page(url: str, body: bytes = b"", *, status: int = 200, **headers: str) -> WebResponse:
    return WebResponse(url, status, tuple(headers.items()), body, truncated=False)
