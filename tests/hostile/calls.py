"""Calls that try to hide what they do from the person who approves them, with an oracle of its own.

A text is a list of pieces: plain text, or a secret that this test has planted. What an approver must
see follows from the pieces alone: plain text byte for byte, a known secret's name, the length of a
token.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

KNOWN: Final = {  # by setting
    "API_KEY": "correct horse battery staple",
    "OPERATOR_TOKEN": "of-the-operator/4711",
}
TOKENS: Final = (
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "sk-proj-a8Kd02mXq71LzR5vWc93TnYb64HsJu",
    "AKIAQ3EGRXKJ7WVSQ2ZP",
    "glpat-Xk29fLmQ7sVbT4yNc0Zd",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
)
FILLERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\ufe00\ufe0f\uffa0")


@dataclass(frozen=True, slots=True)
class Known:
    name: str

    @property
    def text(self) -> str:
        return KNOWN[self.name]


@dataclass(frozen=True, slots=True)
class Token:
    text: str


Piece = str | Known | Token


def written(pieces: Iterable[Piece]) -> str:
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def seen(pieces: Iterable[Piece], *, revealed: bool = False) -> str:
    """The text as an approver must see it."""
    shown = ""
    for piece in pieces:
        match piece:
            case Known():
                shown += f"[secret: {piece.name}]"
            case Token() if not revealed:
                shown += f"[hidden: {len(piece.text)} characters]"
            case Token():
                shown += piece.text
            case str():
                unlike = re.sub(r"<(?=U\+)|\[(?=secret:|hidden:)", _escape, piece)
                shown += "".join(map(_seen, unlike))
    return shown


def hidden(pieces: Iterable[Piece]) -> int:
    return sum(len(piece.text) for piece in pieces if isinstance(piece, Token))


def _escape(mark: re.Match[str]) -> str:
    """A text that looks like one of the marks, as it is told from one."""
    return f"<U+{ord(mark[0]):04X}>"


def _seen(character: str) -> str:
    kind = unicodedata.category(character)
    unseen = kind in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"} or character in FILLERS
    if unseen and character not in " \n\t":
        return f"<U+{ord(character):04X}>"
    return character


RUN: Final = "touch PWN"
HASH: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_NAMES: Final = (
    "authorization", "Authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key",
    "password", "api_key", "secret", "token", "access_key", "private-key", "passphrase", "mnemonic",
)  # fmt: skip
PLAIN: Final = (  # nothing in them is a secret, and each was hidden once, or may have been
    f"true authorization: x ; {RUN}",
    f"-----BEGIN PRIVATE KEY-----\n{RUN}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbg==\n{RUN}\n-----END OPENSSH PRIVATE KEY-----",
    'export api_key="$(cmd)"',
    f'export password="`{RUN}`"; true',
    f"curl --token x;{RUN}",
    f"mysql --password $({RUN})",
    f"curl -u user:x|{RUN}",
    f"curl 'https://x.example/?token=a&key=b&sig=$({RUN})#frag'",
    f"git clone https://user:$({RUN})@git.example/x.git",
    "rm /var/log/nginx/access-2026-11-18.log",
    "rm /var/log/nginx/access-2026-11-19.log",
    "git push --force origin feature/ABC-1234-fix-login-v2",
    f"docker pull registry.example/team/app@sha256:{HASH}",
    f"git checkout {HASH[:40]} && git reset --hard {HASH[:12]}",
    "aws s3 rm --recursive s3://prod-backups-eu-west-1-2026/customers/",
    "kubectl delete pod api-7d9f8b6c5d-x2k4q",
    "psql postgres://app:hunter2@db.example/prod -c 'drop table t'",
    "curl https://x.example/v1/f3b1c2d4-5e6f-4a7b-8c9d-0e1f2a3b4c5d",
    f"echo a &#59; {RUN}; echo %3B %0A \\x3b \\u003b",
    f"echo password is {RUN}",
    f'python -c \'import os; password = "x"; os.system("{RUN}")\'',
    "echo 0123456789abcdef0123456789abcdef01234567",
    f"echo Bearer aaaaaaaaaaaa;{RUN}",
    f"# [redacted] [secret: API_KEY] [hidden: 40 characters] <U+200B>\n{RUN}",
    "\u202eecnetnes eht nrut\u202c",
    "rm\u00a0-rf\u2003/\u3000\u200b\u200d\ufeff\u2060x\u180e",
    "pay\x1b[2K\x1b[1A\x07\r done\x00",
    "a\ufe0fb\u034fc\u115fd\u3164e\u2800f",
    "s\u00e9curit\u00e9 \u6c49\u5b57 \u0440aypal",
    "tabs\tand\n\nlines  and   blanks ",
    "x" * 5_000 + f"; {RUN}",
    " " * 3_000 + RUN,
    *(f"{name}: x ; {RUN}" for name in _NAMES),
    *(f'{name}="a b $({RUN})"' for name in _NAMES),
)
_AROUND: Final = (
    ("curl -H 'Authorization: Bearer ", f"' https://x.example/ ; {RUN}"),
    ("curl https://user:", "@git.example/x.git?token=a&b=1"),
    ("-----BEGIN PRIVATE KEY-----\n", f"\n{RUN}\n-----END PRIVATE KEY-----"),
    ('export api_key="', f'" && {RUN}'),
    ("X=", f" sh -c '{RUN}'"),
    ("rm /var/log/", "/access-2026-11-18.log"),
    (f"git fetch {HASH} ", f" | {RUN}"),
    ("\u202e\u200b ", f" \u00a0{RUN}"),
)


def cases() -> list[tuple[Piece, ...]]:
    """All of them: plain ones, and each surrounding with a known secret and with a token."""
    around: list[tuple[Piece, ...]] = []
    for at, (before, after) in enumerate(_AROUND):
        around.append((before, Known([*KNOWN][at % len(KNOWN)]), after))
        around.append((before, Token(TOKENS[at % len(TOKENS)]), after))
    both = ("echo ", Known("API_KEY"), " ", Token(TOKENS[0]), " ", Token(TOKENS[2]), f" > x; {RUN}")
    return [*((text,) for text in PLAIN), *around, both]


def secrets_of(pieces: Sequence[Piece]) -> list[str]:
    return [piece.text for piece in pieces if not isinstance(piece, str)]
