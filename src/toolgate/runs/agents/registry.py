"""The agents that can be invoked: the built-in ones, and external ones registered by their URL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from toolgate.access.audit import Trail
from toolgate.core.errors import Conflict, Invalid
from toolgate.journal.journal import Delete, Journal, Put, Row
from toolgate.journal.paging import all_rows
from toolgate.journal.rows import ATTEMPTS
from toolgate.runs.agents.agent import Agent
from toolgate.runs.orchestrator import UnknownAgent
from toolgate.secrets.seal import Seal

AGENTS: Final = "agents"


class External(msgspec.Struct, frozen=True):
    """An agent that someone else runs; its token is kept here and shown to nobody."""

    agent_id: str
    endpoint: str
    description: str = ""
    auth_token: str = ""


_decode: Final = msgspec.json.Decoder(External).decode


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in {"http", "https"} and bool(parts.netloc) and parts.port != 0
    except ValueError:  # brackets or a port that no address has
        return False


@dataclass(slots=True)
class Agents:
    journal: Journal
    builtin: Mapping[str, Agent]
    reach: Callable[[External], Agent]
    seal: Seal  # rows hold tokens that must be sent as they are
    trail: Trail
    learn: Callable[[str, str], object] = lambda _secret, _name: None  # a secret, and its name
    _known: dict[str, External] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)  # of the rows that memory holds

    async def load(self) -> None:
        """Know the external agents from the start."""
        async for row in all_rows(self.journal, AGENTS):
            self._keep(row)

    def knows(self, agent_id: str) -> bool:
        return agent_id in self.builtin or agent_id in self._known

    async def find(self, agent_id: str) -> Agent:
        """Raises UnknownAgent."""
        agent = self.builtin.get(agent_id)
        if agent is not None:
            return agent
        known = self._known.get(agent_id)
        if known is None:
            row = await self.journal.get(AGENTS, agent_id)
            if row is None:
                raise UnknownAgent(agent_id)
            known = self._opened(row.value)
        return self.reach(known)

    async def register(self, agent: External, *, by: str) -> None:
        """Add an external agent, or change it; a built-in one's name is taken."""
        if agent.agent_id in self.builtin:
            raise Conflict(f"agent {agent.agent_id} is built in")
        if not _is_address(agent.endpoint):
            raise Invalid("endpoint must be an http or https URL", field="endpoint")
        if not agent.auth_token.isprintable():
            raise Invalid("auth_token must fit in one line of a header", field="auth_token")
        if agent.auth_token and "@" in urlsplit(agent.endpoint).netloc:
            why = "auth_token and a password in the endpoint: a request carries one of them"
            raise Invalid(why, field="auth_token")
        self.learn(agent.auth_token, f"agent {agent.agent_id}")
        value = self.seal.close(msgspec.json.encode(agent))
        for attempt in range(1, ATTEMPTS + 1):
            expected = self._versions.get(agent.agent_id, 0)
            try:
                await self.journal.commit(
                    Put(AGENTS, agent.agent_id, value, expected),
                    *self.trail.note(
                        "agent.registered",
                        actor=by,
                        resource=("agent", agent.agent_id),
                        metadata={"at": urlsplit(agent.endpoint).hostname or ""},
                    ),
                )
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
                await self._reload(agent.agent_id)
            else:
                self._known[agent.agent_id] = agent
                self._versions[agent.agent_id] = expected + 1
                return

    async def remove(self, agent_id: str, *, by: str) -> None:
        """Raises UnknownAgent."""
        for attempt in range(1, ATTEMPTS + 1):
            row = await self._reload(agent_id)
            if row is None:
                raise UnknownAgent(agent_id)
            try:
                await self.journal.commit(
                    Delete(AGENTS, agent_id, expected=row.version),
                    *self.trail.note("agent.removed", actor=by, resource=("agent", agent_id)),
                )
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                self._forget(agent_id)
                return

    async def external(self) -> list[External]:
        return [self._opened(row.value) async for row in all_rows(self.journal, AGENTS)]

    async def _reload(self, agent_id: str) -> Row | None:
        row = await self.journal.get(AGENTS, agent_id)
        if row is None:
            self._forget(agent_id)
        else:
            self._keep(row)
        return row

    def _keep(self, row: Row) -> None:
        agent = self._opened(row.value)
        self.learn(agent.auth_token, f"agent {agent.agent_id}")
        self._known[agent.agent_id] = agent
        self._versions[agent.agent_id] = row.version

    def _forget(self, agent_id: str) -> None:
        self._known.pop(agent_id, None)
        self._versions.pop(agent_id, None)

    def _opened(self, closed: bytes) -> External:
        return _decode(self.seal.open(closed))
