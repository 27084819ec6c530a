"""The tokens that Toolgate makes: a prefix by kind, 32 random bytes and a checksum.

`tg_dev_` + 43 characters of 0-9 A-Z a-z + 6 characters: the CRC-32 of the 43, in base 62. The prefix
and the checksum let scanners find a token that leaked. Tokens without them, made by 0.1.0, stay valid.
"""

import secrets
import string
import zlib
from enum import StrEnum
from pathlib import Path
from typing import Final

from toolgate.core.errors import Damaged

ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
TOKEN_BYTES: Final = 32  # gateway contract
BODY_LENGTH: Final = 43  # 32 bytes in base 62
CHECKSUM_LENGTH: Final = 6  # as GitHub and npm write theirs


class TokenKind(StrEnum):
    """The prefix of each kind of token; `own` in token_formats.json covers them all."""

    DEVICE = "tg_dev_"
    SERVICE = "tg_svc_"
    SIGN_IN = "tg_code_"
    OPERATOR = "tg_op_"
    EXECUTOR = "tg_exec_"
    INTERNAL = "tg_int_"
    API_KEY = "tg_key_"


FILES: Final = {  # in home, of the tokens that are made if unset
    TokenKind.OPERATOR: "operator.token",
    TokenKind.EXECUTOR: "executor.token",
    TokenKind.INTERNAL: "internal.token",
    TokenKind.API_KEY: "api.key",
}


def kept_token(path: Path) -> str:
    """The token in this file, empty if there is none; raises Damaged if it cannot be one."""
    try:
        kept = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        kept = "\0"
    if not kept.isprintable():
        raise Damaged(f"{path} holds no token of one line: delete it, and a new one is made")
    return kept


def new_token(kind: TokenKind) -> str:
    body = _base62(secrets.randbits(8 * TOKEN_BYTES), BODY_LENGTH)
    return f"{kind}{body}{checksum(body)}"


def checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
