"""Signing in: the operator's token or a one-time code, exchanged for a cookie that proves it.

The cookie is signed with a key made from the operator's token: it survives a restart, and another
token ends every session. A session that was ended is remembered until it would have expired.

Browsers send the cookie with requests of other sites' pages too. So a request counts only if it comes
from our own page: it has a header that a form cannot send, and a change has an Origin that is ours.
"""

import contextlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from toolgate.access.refusals import Forbidden
from toolgate.core.clock import Clock
from toolgate.core.errors import Conflict, Refused
from toolgate.journal.journal import Delete, Journal, Put
from toolgate.secrets.own_tokens import TokenKind, new_token

COOKIE: Final = "toolgate_operator"
MARK: Final = "x-toolgate-console"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
SESSION_MS: Final = 12 * 3600 * 1000
CODE_MS: Final = 3600 * 1000  # how long a printed link can be used
MAX_CODES: Final = 32
FAILURES_A_MINUTE: Final = 20
ENDED: Final = "console_ended"
_PURPOSE: Final = b"toolgate console session 1"


class TooManyAttempts(Refused):
    """Someone guesses: wait a minute."""


def check_own_page(headers: Mapping[str, str], *, changes: bool) -> None:
    """Raise Forbidden for a request that another site's page may have sent."""
    origin = headers.get("origin")
    is_ours = not changes if origin is None else origin.partition("://")[2] == headers.get("host")
    site = headers.get("sec-fetch-site", "same-origin")
    if not is_ours or site != "same-origin" or headers.get(MARK) != "1":
        raise Forbidden("a request with the console's cookie must come from the console's own page")


@dataclass(slots=True)
class SignIn:
    operator_token: str = field(repr=False)
    clock: Clock
    journal: Journal
    _codes: dict[str, int] = field(default_factory=dict, repr=False)
    _ended: set[str] = field(default_factory=set)
    _failures: list[tuple[int, str]] = field(default_factory=list)  # when, and by which address

    async def load(self) -> None:
        """The sessions that were ended before their time."""
        now = self.clock.now_ms()
        for row in await self.journal.scan(ENDED):
            if int(row.value) < now:
                with contextlib.suppress(Conflict):  # another process deleted it
                    await self.journal.commit(Delete(ENDED, row.key, expected=row.version))
            else:
                self._ended.add(row.key)

    def new_code(self) -> str:
        """A code that opens one session."""
        now = self.clock.now_ms()
        live = {code: until for code, until in self._codes.items() if until > now}
        while len(live) >= MAX_CODES:
            live.pop(next(iter(live)))
        code = new_token(TokenKind.SIGN_IN)
        self._codes = {**live, _hashed(code): now + CODE_MS}
        return code

    def open(self, *, token: str = "", code: str = "", by: str = "") -> str:
        """A cookie for whoever proves to be the operator; raises Refused, TooManyAttempts.

        An address that guesses tokens is held back, and no other; a code cannot be guessed.
        """
        now = self.clock.now_ms()
        self._failures = [one for one in self._failures if one[0] > now - 60_000]
        failures = sum(address == by for _, address in self._failures)
        if failures >= FAILURES_A_MINUTE and not code:
            raise TooManyAttempts("too many attempts; wait a minute")
        if not self._proves(token, code, now):
            if code:
                raise Refused("the link was used already, or is too old")
            self._failures.append((now, by))
            raise Refused("that is not the operator's token")
        nonce = secrets.token_urlsafe(18)
        return self._signed(f"{now + SESSION_MS}.{nonce}")

    def is_open(self, cookie: str) -> bool:
        expires, nonce = self._read(cookie)
        return bool(nonce) and expires > self.clock.now_ms() and nonce not in self._ended

    def has_session(self, headers: Mapping[str, str]) -> bool:
        """True if a request has the cookie of an open session."""
        return self.is_open(cookie_of(headers))

    async def end(self, cookie: str) -> None:
        expires, nonce = self._read(cookie)
        if nonce and nonce not in self._ended:
            self._ended.add(nonce)
            with contextlib.suppress(Conflict):  # another process has ended it: it stays ended
                await self.journal.commit(Put(ENDED, nonce, str(expires).encode(), expected=0))

    def is_token(self, token: str) -> bool:
        return hmac.compare_digest(_hashed(token), _hashed(self.operator_token))

    def _proves(self, token: str, code: str, now: int) -> bool:
        if code:
            return self._codes.pop(_hashed(code), 0) > now
        return bool(token) and self.is_token(token)

    def _read(self, cookie: str) -> tuple[int, str]:
        content, _, _ = cookie.rpartition(".")
        if not hmac.compare_digest(self._signed(content).encode(), cookie.encode()):
            return 0, ""
        expires, _, nonce = content.partition(".")
        return (int(expires), nonce) if expires.isdigit() else (0, "")

    def _signed(self, content: str) -> str:
        key = hmac.digest(self.operator_token.encode(), _PURPOSE, "sha256")
        return f"{content}.{hmac.new(key, content.encode(), 'sha256').hexdigest()}"


def cookie_of(headers: Mapping[str, str]) -> str:
    """The session's cookie of a request; empty if it has none."""
    pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _hashed(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
