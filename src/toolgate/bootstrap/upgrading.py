"""The upgrade of a home of 0.1.0, with what it needs to know of the home."""

import functools
from collections.abc import Callable
from pathlib import Path

from toolgate.bootstrap.sealing import find_seal
from toolgate.core.errors import Misconfigured
from toolgate.evidence.signer import Commitments
from toolgate.journal.sqlite.upgrade import Upgrade
from toolgate.policy.file import find_policy
from toolgate.policy.model import InvalidPolicy, Policy
from toolgate.policy.shell_parser import TreeSitterShellParser
from toolgate.settings import Settings
from toolgate.upgrade_0_1_0.changes import changes
from toolgate.upgrade_0_1_0.reading import Home


def upgrade_of(settings: Settings, *, now: int, redact: Callable[[str], str]) -> Upgrade:
    home = Home(
        now=now,
        seal=functools.partial(find_seal, settings.home),
        policy=functools.cache(lambda: _policy(settings)),
        commitment=functools.cache(lambda: Commitments.in_home(settings.home)),
        redact=redact,
    )
    return functools.partial(changes, home=home)


def _policy(settings: Settings) -> Policy:
    path = Path(settings.policy_file) if settings.policy_file else None
    kept = settings.home / "policy.yaml"
    try:
        _, _, policy = find_policy(path, keep_at=kept, parse_shell=TreeSitterShellParser())
    except (OSError, UnicodeDecodeError, InvalidPolicy) as wrong:
        raise Misconfigured(f"POLICY_FILE {path or kept}: {wrong}") from wrong
    return policy
