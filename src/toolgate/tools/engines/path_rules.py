"""Tools under a policy with rules about paths or commands: a call does what its words say, or fails.

Such a policy decides before anything is opened. So a path with a link in it is refused, a listing
leaves out what the policy denies. What a command opens by itself is not checked.
"""

import asyncio
import json
from typing import Any, Final

import msgspec

from toolgate.core.enums import Outcome
from toolgate.core.tools import ToolOutput, ToolRequest
from toolgate.policy.inputs import CWD_ARGUMENT
from toolgate.policy.model import DEFAULT_DENY, Decision, Effect
from toolgate.policy.paths import SANDBOX_ROOT
from toolgate.policy.policies import Policies
from toolgate.tools.definitions import failed
from toolgate.tools.engine import Engine, Update, no_update
from toolgate.tools.routing import TARGET_FILES

LIST: Final = "file.list"
AT_ONCE: Final = 50  # entries, before others have their turn: each takes some 0.1 ms to decide


class PathRules:
    """An Engine over one that has files or runs commands; other calls pass through it."""

    def __init__(self, engine: Engine, policies: Policies) -> None:
        self._engine = engine
        self._policies = policies

    @property
    def ref(self) -> str:
        return self._engine.ref

    async def run(self, request: ToolRequest, *, update: Update = no_update) -> ToolOutput:
        if not self._goes_by_path(request):
            return await self._engine.run(request, update=update)
        request = request._replace(no_links=True)
        if request.tool != LIST:
            return await self._engine.run(request, update=update)
        output = await self._engine.run(request)  # an update might name what is left out
        return await self._shown(request, output) if output.ok else output

    def _goes_by_path(self, request: ToolRequest) -> bool:
        if request.tool.startswith(TARGET_FILES):
            return self._policies.goes_by_path(request)
        return bool(request.args.get(CWD_ARGUMENT)) and self._policies.goes_by_cwd(request)

    async def _shown(self, request: ToolRequest, output: ToolOutput) -> ToolOutput:
        try:
            entries: list[dict[str, Any]] = _entries.decode(output.stdout)
        except msgspec.DecodeError:  # a runner elsewhere may tell it in a way of its own
            if not request.args.get("recursive"):
                return output
            message = f"{LIST}: the policy decides by path, and the target's answer cannot be read"
            return failed(message, outcome=Outcome.EXECUTED)
        listing = _Listing(request, self._policies)
        shown = []
        for number, entry in enumerate(entries, 1):
            if listing.shows(str(entry.get("path"))):
                shown.append(entry)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if len(shown) == len(entries):
            return output
        return output._replace(stdout=json.dumps(shown, ensure_ascii=False))


_entries: Final = msgspec.json.Decoder(list[dict[str, Any]])


class _Listing:
    """The entries of one listing that are shown, checked in order: directories come first.

    A name belongs to the listing of its directory, unless a rule denies it. What lies in a directory
    below the one that was asked for is shown where the policy lets the caller list that one too.
    """

    def __init__(self, request: ToolRequest, policies: Policies) -> None:
        self._request = request
        self._policies = policies
        self._level = policies.level_of(request)
        self._own = policies.decide(request, level=self._level)
        path = request.args.get("path")
        self._root = f"/{SANDBOX_ROOT}/" if isinstance(path, str) and path[:1] == "/" else ""
        self._closed: set[str] = set()

    def shows(self, path: str) -> bool:
        if path.rpartition("/")[0] in self._closed:
            self._closed.add(path)
            return False
        decision = self._decide(path)
        if not self._opens(decision):
            self._closed.add(path)
        return decision.effect is not Effect.DENY or decision.rule_id == DEFAULT_DENY

    def _decide(self, path: str) -> Decision:
        """Decide as if the call had named this path, in the spelling of the call's own."""
        args = {**self._request.args, "path": self._root + path}
        return self._policies.decide(self._request._replace(args=args), level=self._level)

    def _opens(self, decision: Decision) -> bool:
        """True if a directory may be entered; an approval covers only the rule that asked."""
        if decision.effect is Effect.ASK:
            return (self._own.effect, self._own.rule_id) == (Effect.ASK, decision.rule_id)
        return decision.effect is Effect.ALLOW
