"""What the guarded proxy refused lately, so that a failed page can be told from a refused one."""

from collections import OrderedDict
from typing import Final

from toolgate.adapters.egress_proxy import EgressDecision

REMEMBERED: Final = 1000


class RefusedHosts:
    def __init__(self) -> None:
        self._hosts: OrderedDict[tuple[str, int], None] = OrderedDict()

    def note(self, decision: EgressDecision) -> None:
        key = (decision.host, decision.port)
        self._hosts.pop(key, None)
        if not decision.allowed:
            self._hosts[key] = None
            while len(self._hosts) > REMEMBERED:
                self._hosts.popitem(last=False)

    def has(self, host: str, port: int) -> bool:
        return (host, port) in self._hosts
