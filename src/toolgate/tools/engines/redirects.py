"""The addresses that one web request goes through: each is put to the policy, and counted."""

from collections.abc import Callable

import msgspec

from toolgate.core.enums import Outcome
from toolgate.core.errors import Invalid, ToolgateError
from toolgate.core.tools import ToolRequest
from toolgate.core.urls import Url


class Hops:
    """For `Web.fetch` as what is granted: the first URL too, as it is read there."""

    def __init__(self, request: ToolRequest, permits: Callable[[ToolRequest, Url], bool]) -> None:
        self._request = request
        self._permits = permits
        self._asked = 0

    def __call__(self, url: Url, method: str) -> bool:
        self._asked += 1
        request = self._request
        if "method" in request.args:  # after some redirects it's another one
            request = msgspec.structs.replace(request, args={**request.args, "method": method})
        return self._permits(request, url)

    def outcome(self, refused: ToolgateError) -> Outcome:
        """What was done before this: the hops but the last, or all where its answer led nowhere."""
        sent = self._asked - (not isinstance(refused, Invalid))
        return Outcome.EXECUTED if sent > 0 else Outcome.NOT_STARTED
