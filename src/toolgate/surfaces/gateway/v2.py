"""`/v2/ws`: every route of v1 as a request, events pushed. One connection, one device."""

from collections.abc import Callable

Verify = Callable[[str, bytes, str], bool]  # public key, message, signature
