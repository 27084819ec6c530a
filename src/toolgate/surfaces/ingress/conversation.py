"""What each message of a client means in the present state of its connection.

Text and `now` in, effects out; no socket, no task, no journal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from toolgate.access.devices import Identity
from toolgate.access.refusals import InvalidToken
from toolgate.contracts import ingress_v1 as wire
from toolgate.contracts.ingress_v1 import CloseCode, ConnectionState, ErrorCode
from toolgate.contracts.wire import UNREADABLE, field_of


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to this connection alone."""

    message: wire.AnyServerMessage


@dataclass(frozen=True, slots=True)
class Close:
    code: CloseCode
    reason: str


@dataclass(frozen=True, slots=True)
class Open:
    """The key is right: find or make the session, then say `opened` or `refused`."""

    hello: wire.Hello


@dataclass(frozen=True, slots=True)
class Forward:
    """A command of an open session: for the orchestrator."""

    message: wire.AgentInvoke | wire.ToolResult | wire.ApprovalDecision | wire.CancelRun


Effect = Send | Close | Open | Forward


Authenticate = Callable[[str, str], Identity]  # user_id, api_key; raises InvalidToken


class Conversation:
    def __init__(self, authenticate: Authenticate) -> None:
        self.state = ConnectionState.CREATED
        self.session_id = ""
        self.user_id = ""
        self.identity: Identity | None = None
        self._authenticate = authenticate

    def receive(self, text: bytes, *, now: int) -> list[Effect]:
        if self.state is ConnectionState.CLOSED:
            return []
        if not is_utf8(text):
            self.state = ConnectionState.CLOSED
            return [Close(CloseCode.NOT_UTF8, "a text message is not UTF-8")]
        try:
            message = wire.decode_client(text)
        except UNREADABLE as unreadable:
            return [self._unreadable(unreadable, now)]
        match message:
            case wire.Hello():
                return self._hello(message, now)
            case wire.AgentInvoke() | wire.ToolResult():
                return self._command(message, now)
            case wire.ApprovalDecision() | wire.CancelRun():
                return self._command(message, now)
            case _:
                assert_never(message)

    def receive_binary(self, *, now: int) -> list[Effect]:
        if self.state is ConnectionState.CLOSED:
            return []
        return [error(ErrorCode.INVALID_MESSAGE, "$: messages are text, not binary", now)]

    def opened(
        self, session_id: str, *, resumed: bool, seq: int, epoch: str, now: int
    ) -> list[Effect]:
        self.state = ConnectionState.ACTIVE
        self.session_id = session_id
        ack = wire.HelloAck(ts=now, session_id=session_id, resumed=resumed, seq=seq, epoch=epoch)
        return [Send(ack)]

    def refused(self, code: ErrorCode, message: str, *, request_id: str, now: int) -> list[Effect]:
        """The session cannot be had; the client may say hello again."""
        self.state = ConnectionState.CREATED
        self.user_id = ""
        return [error(code, message, now, request_id=request_id)]

    def hello_overdue(self) -> list[Close]:
        if self.state is not ConnectionState.CREATED:
            return []
        self.state = ConnectionState.CLOSED
        return [Close(CloseCode.UNAUTHENTICATED, "no hello in time")]

    def _hello(self, hello: wire.Hello, now: int) -> list[Effect]:
        if self.state is not ConnectionState.CREATED:
            said = "$.type: hello was said already"
            return [error(ErrorCode.INVALID_MESSAGE, said, now, request_id=hello.request_id)]
        try:
            self.identity = self._authenticate(hello.user_id, hello.api_key)
        except InvalidToken as refused:
            self.state = ConnectionState.CLOSED
            wrong = error(ErrorCode.AUTH_FAILED, str(refused), now, request_id=hello.request_id)
            return [wrong, Close(CloseCode.UNAUTHENTICATED, "auth_failed")]
        self.state = ConnectionState.AUTHENTICATING
        self.user_id = hello.user_id
        return [Open(hello)]

    def _command(
        self,
        message: wire.AgentInvoke | wire.ToolResult | wire.ApprovalDecision | wire.CancelRun,
        now: int,
    ) -> list[Effect]:
        if self.state is not ConnectionState.ACTIVE:
            return [self._no_session("say hello first", message, now)]
        if message.session_id and message.session_id != self.session_id:
            return [self._no_session("this connection has another session", message, now)]
        return [Forward(message)]

    def _no_session(
        self,
        why: str,
        message: wire.AgentInvoke | wire.ToolResult | wire.ApprovalDecision | wire.CancelRun,
        now: int,
    ) -> Send:
        run_id = "" if isinstance(message, wire.AgentInvoke) else message.run_id
        return error(
            ErrorCode.SESSION_NOT_FOUND, why, now, request_id=message.request_id, run_id=run_id
        )

    def _unreadable(self, unreadable: Exception, now: int) -> Send:
        return error(ErrorCode.INVALID_MESSAGE, f"{field_of(unreadable)}: {unreadable}", now)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def error(
    code: ErrorCode, message: str, now: int, *, request_id: str = "", run_id: str = ""
) -> Send:
    return Send(
        wire.Error(ts=now, code=code, message=message, request_id=request_id, run_id=run_id)
    )
