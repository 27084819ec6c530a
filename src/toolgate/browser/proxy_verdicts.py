"""What the guarded proxy lately said of hosts, so that its answer is not taken for a page."""

import contextlib
from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

from toolgate.browser.browser import NavigationFailed, NavigationRefused, PageError
from toolgate.web.egress_proxy import EgressDecision

REMEMBERED: Final = 1000
SECURE: Final = frozenset({"https", "wss"})
PROXY_STATUS: Final = frozenset({403, 502})  # as the proxy answers for itself


def no_complaint(_url: str) -> PageError | None:
    """For a browser that talks to the world directly."""
    return None


class ProxyVerdicts:
    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, int], bool] = OrderedDict()  # else unreachable

    def note(self, decision: EgressDecision) -> None:
        key = (decision.host, decision.port)
        self._refused.pop(key, None)
        if not decision.allowed or decision.reason:
            self._refused[key] = not decision.allowed
            while len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)

    def complaint(self, url: str) -> PageError | None:
        """Why nothing could come from there; None where the proxy let it through."""
        refused = None
        with contextlib.suppress(ValueError):
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme in SECURE else 80)
            refused = self._refused.get((parts.hostname or "", port))
        if refused is None:
            return None
        if refused:
            return NavigationRefused("the guard refused this address")
        return NavigationFailed("the server cannot be reached")
