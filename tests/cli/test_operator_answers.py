"""What the operator's commands make of a gateway's refusals, and of what is no gateway."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolgate.cli.main import main
from toolgate.cli.operator import Operator, show
from toolgate.core.errors import Refused, Unavailable
from toolgate.tools.files import LARGEST_FILE

GONE = b'{"ok":false,"data":null,"traceId":"t","error":{"code":"INVALID_REQUEST","message":"gone"}}'


@contextlib.contextmanager
def answering(
    status: int, body: bytes, asked: list[str] | None = None, *, location: str = ""
) -> Iterator[Operator]:
    """A server that answers each request with this; `asked` gets the paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - as the library calls it

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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_token_goes_where_an_answer_leads(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXECUTOR_TOKEN", "token")
    elsewhere: list[str] = []
    with (
        answering(200, b'{"ok":true,"data":{}}', elsewhere) as other,
        answering(status, b"", location=f"{other.url}/elsewhere") as operator,
    ):
        with pytest.raises(Unavailable):
            operator.data("GET", "/approvals")
        with pytest.raises(Unavailable):
            operator.data("POST", "/approvals", {})
        with pytest.raises(Unavailable):
            list(operator.lines("/events/stream"))
        get = ["artifact", "get", "files/x", "--url", operator.url, "--home", str(tmp_path)]
        assert CliRunner().invoke(main, get).exit_code != 0
    assert elsewhere == []


def test_a_stream_that_is_refused_says_why() -> None:
    with answering(410, GONE) as operator, pytest.raises(Refused, match="gone"):
        list(operator.lines("/events/stream"))


def test_a_stream_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.cli.operator.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = Operator(f"http://127.0.0.1:{server.getsockname()[1]}", "t").lines("/events/stream")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, heard)
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n: \n")
                assert first.result(5) == ": "
                with pytest.raises(Unavailable):
                    pool.submit(next, heard).result(5)


@pytest.mark.parametrize("body", [b"<h1>Bad Gateway</h1>", b"[]", b'{"error":"no"}', b""])
def test_an_error_that_is_not_a_gateways_is_told_as_such(body: bytes) -> None:
    with answering(502, body) as operator:
        with pytest.raises(Unavailable):
            operator.ask("GET", "/status")
        with pytest.raises(Unavailable):
            list(operator.lines("/events/stream"))


@contextlib.contextmanager
def saying(raw: bytes) -> Iterator[str]:
    """The address of something that says this to whoever connects, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(raw)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


OTHERS = {
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a broken stream": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n: hi\n\r\n"),
    "another's page": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<h1>",
    "another's error": b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
    "another's json": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "another's object": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
}
COMMANDS = (
    ["devices"],
    ["token", "list"],
    ["events"],
    ["task", "list"],
    ["artifact", "put", __file__],
    ["console"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize("said", OTHERS.values(), ids=OTHERS.keys())
def test_a_command_says_in_one_line_that_what_answers_is_no_gateway(
    command: list[str], said: bytes, tmp_path: Path
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=operators", "-s", "EXECUTOR_TOKEN=executors"]
    with saying(said) as url:
        port = url.rpartition(":")[2]
        where = ["-s", f"GATEWAY_PORT={port}"] if command == ["console"] else ["--url", url]
        ended = CliRunner().invoke(main, [*command, *where, *tokens, "--home", str(tmp_path)])
    if command == ["events"] and b"200 OK" in said:
        assert ended.exit_code == 0, ended.exception  # a stream that ends without an event
        return
    assert ended.exit_code == 1, (ended.output, ended.exception)
    assert isinstance(ended.exception, SystemExit)
    assert ended.stderr.startswith("toolgate: ")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_token_that_no_header_can_hold_is_refused_and_not_printed(
    command: list[str], tmp_path: Path
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=hush\nhush", "-s", "EXECUTOR_TOKEN=hush\nhush"]
    ended = CliRunner().invoke(main, [*command, *tokens, "--home", str(tmp_path)])
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert "_TOKEN" in ended.stderr
    assert "hush" not in ended.output


def test_a_targets_token_that_is_no_text_is_wrong_usage(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"\xff\xfe")
    with answering(200, b'{"ok":true,"data":{"items":[]}}') as operator:
        asked = ["targets", "set", "lab", "--token-file", str(token), "--url", operator.url]
        ended = CliRunner().invoke(main, [*asked, "-s", "OPERATOR_TOKEN=x", f"--home={tmp_path}"])
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert "--token-file" in ended.stderr


def test_what_a_server_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    body = b'{"error":{"code":"X","message":"no\\u001b]0;owned\\u0007 \\u202e"}}'
    with answering(403, body) as operator:
        ended = CliRunner().invoke(
            main, ["devices", "--url", operator.url, "-s", "OPERATOR_TOKEN=x", f"--home={tmp_path}"]
        )
    assert ended.exit_code == 1
    assert ended.stderr == "toolgate: no␛]0;owned␇ <U+202E>\n"


def test_a_name_with_colons_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"deviceId": "lab:key:[b]7"}], {"device": "deviceId"}, as_json=False)
    assert "lab:key:[b]7" in capsys.readouterr().out


def test_a_file_that_is_too_large_to_be_kept_is_said_to_be_so(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with saying(b"") as url:
        settings = ["--url", url, "-s", "EXECUTOR_TOKEN=" + "x" * 32, "--home", str(tmp_path)]
        result = CliRunner().invoke(main, ["artifact", "put", str(large), *settings])
    assert result.exit_code == 1
    assert f"at most {LARGEST_FILE} bytes" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_no_proxy_is_given_what_goes_to_this_machine(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=operators", "-s", "EXECUTOR_TOKEN=executors"]
    asked: list[str] = []
    with answering(200, b'{"from": "a proxy"}', asked) as proxy, saying(b"") as url:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        port = url.rpartition(":")[2]
        where = ["-s", f"GATEWAY_PORT={port}"] if command == ["console"] else ["--url", url]
        ended = CliRunner().invoke(main, [*command, *where, *tokens, "--home", str(tmp_path)])
    assert ended.exit_code == 1
    assert "answer" in ended.stderr
    assert not asked


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_where_no_server_runs_the_command_that_starts_one_is_named(
    command: list[str], tmp_path: Path
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=operators", "-s", "EXECUTOR_TOKEN=executors"]
    where = ["-s", "GATEWAY_PORT=9", "--home", str(tmp_path)]
    ended = CliRunner().invoke(main, [*command, *tokens, *where])
    assert ended.exit_code == 1
    assert "`toolgate up`" in ended.stderr
    assert "urlopen" not in ended.stderr


def test_where_no_ingress_runs_the_command_that_starts_one_is_named(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["chat", "hi", "-s", "WS_PORT=9", f"--home={tmp_path}"])
    assert ended.exit_code == 1
    assert "`toolgate up`" in ended.stderr


@pytest.mark.parametrize(
    ("command", "setting"),
    [(["devices"], "OPERATOR_TOKEN"), (["artifact", "put", __file__], "EXECUTOR_TOKEN")],
)
def test_a_token_that_is_refused_is_said_by_the_name_it_is_set_with(
    command: list[str], setting: str, tmp_path: Path
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=operators", "-s", "EXECUTOR_TOKEN=executors"]
    with answering(401, GONE) as operator:
        where = ["--url", operator.url, "--home", str(tmp_path)]
        ended = CliRunner().invoke(main, [*command, *tokens, *where])
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"toolgate: gone: set {setting}, or --home")


@pytest.mark.parametrize(
    "url", ["nonsense", "http://[::1", "http://:8787", "http://h:99999", "ws://h"]
)
@pytest.mark.parametrize("command", COMMANDS[:-1], ids=lambda command: " ".join(command[:2]))
def test_an_address_that_is_none_is_wrong_usage(
    command: list[str], url: str, tmp_path: Path
) -> None:
    tokens = ["-s", "OPERATOR_TOKEN=operators", "-s", "EXECUTOR_TOKEN=executors"]
    ended = CliRunner().invoke(main, [*command, *tokens, "--url", url, "--home", str(tmp_path)])
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert ended.stderr.startswith(f"toolgate: --url {url} is not a gateway's address")


@pytest.mark.parametrize(
    "given", [["--levle", "read"], ["--mcp-url", "https://mcp.example.com", "npx"]]
)
def test_a_mistyped_option_or_two_servers_register_nothing(
    given: list[str], tmp_path: Path
) -> None:
    asked: list[str] = []
    with answering(200, b'{"ok":true,"data":{}}', asked) as operator:
        where = ["--url", operator.url, "-s", "OPERATOR_TOKEN=x", "--home", str(tmp_path)]
        register = ["capabilities", "register", "mcp.docs", *where, *given]
        ended = CliRunner().invoke(main, register)
    assert ended.exit_code == 2, ended.output
    assert not asked
