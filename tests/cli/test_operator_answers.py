"""What the operator's commands make of a gateway's refusals, and of what is no gateway."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from toolgate.cli.operator import Operator
from toolgate.domain.errors import Refused, Unavailable

GONE = b'{"ok":false,"data":null,"traceId":"t","error":{"code":"INVALID_REQUEST","message":"gone"}}'


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[Operator]:
    """A server that answers each request with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield Operator(f"http://127.0.0.1:{server.server_port}", "token")
        finally:
            server.shutdown()
            serving.join()


def test_a_stream_that_is_refused_says_why() -> None:
    with answering(410, GONE) as operator, pytest.raises(Refused, match="gone"):
        list(operator.lines("/events/stream"))


@pytest.mark.parametrize("body", [b"<h1>Bad Gateway</h1>", b"[]", b'{"error":"no"}', b""])
def test_an_error_that_is_not_a_gateways_is_told_as_such(body: bytes) -> None:
    with answering(502, body) as operator:
        with pytest.raises(Unavailable):
            operator.ask("GET", "/status")
        with pytest.raises(Unavailable):
            list(operator.lines("/events/stream"))
