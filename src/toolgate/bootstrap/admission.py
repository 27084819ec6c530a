"""Callers, rate limits and capabilities: the gate reads them, the gateway's routes write them."""

import sys
from dataclasses import dataclass
from pathlib import Path

from toolgate.access.authentication import Authenticator
from toolgate.access.rate_limits import RateLimits
from toolgate.access.registry import Registry
from toolgate.access.sign_in import SignIn
from toolgate.bootstrap.installation import Core, api_key, tell, token
from toolgate.evidence.audit import AuditLog
from toolgate.secrets.own_tokens import FILES, TokenKind, kept_token
from toolgate.secrets.patterns import SecretPatterns
from toolgate.settings import Settings
from toolgate.surfaces.gateway.assembly import OWN_CAPABILITIES, SYSTEM_CAPABILITIES
from toolgate.surfaces.gateway.events import health_event
from toolgate.tools.capability_registry import Capabilities
from toolgate.tools.upstream.file import read_servers


@dataclass(frozen=True, slots=True)
class Admission:
    registry: Registry
    authenticator: Authenticator
    sign_in: SignIn
    rates: RateLimits
    capabilities: Capabilities


async def open_admission(settings: Settings, core: Core, internal_token: str) -> Admission:
    """Load before recovery: calls that a restart resumes are decided by it."""
    journal, clock = core.journal, core.clock
    made = operator_token(settings, core.patterns)
    registry = Registry(journal, clock)
    authenticator = Authenticator(
        registry,
        operator_token=made,
        gateway_token=settings.gateway_token.reveal(),
        executor_token=token(settings, TokenKind.EXECUTOR, core.patterns),
        internal_token=internal_token,
        api_key=api_key(settings, core.patterns),
    )
    servers = read_servers(Path(settings.mcp_file)) if settings.mcp_file else ()
    capabilities = Capabilities(
        journal,
        clock,
        core.seal,
        AuditLog(journal, redactor=core.redactor),
        (*SYSTEM_CAPABILITIES, *OWN_CAPABILITIES, *servers),
        core.learn,
        lambda capability_id, health: (health_event(capability_id, health),),
    )
    rates = RateLimits(journal, clock)
    sign_in = SignIn(made, clock, journal)
    for part in (registry, sign_in, rates, capabilities):
        await part.load()
    return Admission(registry, authenticator, sign_in, rates, capabilities)


def operator_token(settings: Settings, patterns: SecretPatterns) -> str:
    """The operator's token, made on first start and printed then; to a terminal only."""
    path = settings.home / FILES[TokenKind.OPERATOR]
    is_new = not settings.operator_token and not kept_token(path)
    made = token(settings, TokenKind.OPERATOR, patterns)
    if is_new:
        shown = f": {made}" if sys.stderr.isatty() else ""
        tell(settings, f"operator token (made now, kept in {path}){shown}")
    return made
