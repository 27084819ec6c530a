"""The agents that can be invoked: the built-in ones, and external ones registered by their URL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from toolgate.core.errors import Conflict, Invalid, NotFound
from toolgate.journal.journal import Delete, Journal, Put
from toolgate.runs.agents.agent import Agent
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
    learn: Callable[[str], object] = str  # a token, so that it is written down nowhere else
    _known: dict[str, External] = field(default_factory=dict)

    async def load(self) -> None:
        """Know the external agents from the start."""
        for agent in await self.external():
            self.learn(agent.auth_token)
            self._known[agent.agent_id] = agent

    def knows(self, agent_id: str) -> bool:
        return agent_id in self.builtin or agent_id in self._known

    async def find(self, agent_id: str) -> Agent:
        """Raises NotFound."""
        agent = self.builtin.get(agent_id)
        if agent is not None:
            return agent
        known = self._known.get(agent_id)
        if known is None:
            row = await self.journal.get(AGENTS, agent_id)
            if row is None:
                raise NotFound("agent", agent_id)
            known = self._opened(row.value)
        return self.reach(known)

    async def register(self, agent: External) -> None:
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
        self.learn(agent.auth_token)
        await self.journal.commit(
            Put(AGENTS, agent.agent_id, self.seal.close(msgspec.json.encode(agent)))
        )
        self._known[agent.agent_id] = agent

    async def remove(self, agent_id: str) -> None:
        if await self.journal.get(AGENTS, agent_id) is None:
            raise NotFound("agent", agent_id)
        await self.journal.commit(Delete(AGENTS, agent_id))
        self._known.pop(agent_id, None)

    async def external(self) -> list[External]:
        found: list[External] = []
        after = ""
        while rows := await self.journal.scan(AGENTS, after=after):
            found += [self._opened(row.value) for row in rows]
            after = rows[-1].key
        return found

    def _opened(self, closed: bytes) -> External:
        return _decode(self.seal.open(closed))
