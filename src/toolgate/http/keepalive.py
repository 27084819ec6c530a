"""Sockets for streams that may be silent for long: that someone is still there is asked by TCP itself."""

import socket
from typing import Final

import aiohttp

OPTIONS: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # gone after 60 s


def kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    """A connector's `socket_factory`."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in OPTIONS.items():
        if hasattr(socket, name):  # not every system has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
