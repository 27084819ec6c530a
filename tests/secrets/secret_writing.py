"""Secrets of many kinds, and the ways in which one may be written."""

import base64
import html
import json
import random
import re
import string
import urllib.parse
from collections.abc import Callable


def lower_percent(text: str) -> str:
    return re.sub("%..", lambda match: match[0].lower(), text)


def spread(text: str, size: int, gap: str) -> str:
    """The text without its own gaps, in groups of one size."""
    bare = re.sub(r"[\s,:-]", "", text)
    size = min(size, len(bare) // 3)  # three groups at least: two are a compound
    return gap.join(bare[at : at + size] for at in range(0, len(bare), size))


def xxd(content: bytes) -> str:
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        words = " ".join(row[two : two + 2].hex() for two in range(0, len(row), 2))
        lines.append(f"{at:08x}: {words:<39}  {column(row)}")
    return "\n".join(lines)


def hexdump(content: bytes) -> str:
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        halves = f"{row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}"
        lines.append(f"{at:08x}  {halves}  |{column(row)}|")
    return "\n".join([*lines, f"{len(content):08x}"])


def words_of_two(content: bytes) -> str:
    """As `hexdump` without options: little-endian words of two bytes."""
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        words = (row[two : two + 2][::-1].hex().rjust(4, "0") for two in range(0, len(row), 2))
        lines.append(f"{at:07x} {' '.join(words)}")
    return "\n".join([*lines, f"{len(content):07x}"])


def column(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 unpadded": lambda s: base64.b64encode(s.encode()).decode().rstrip("="),
    "base64 after one byte": lambda s: base64.b64encode(b":" + s.encode()).decode(),
    "base64 after two bytes": lambda s: base64.b64encode(b"u:" + s.encode()).decode(),
    "base64url": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "base64url unpadded": lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    "percent": lambda s: urllib.parse.quote(s, safe=""),
    "percent, lower case": lambda s: lower_percent(urllib.parse.quote(s, safe="")),
    "form": urllib.parse.quote_plus,
    "every byte": lambda s: "".join(f"%{b:02x}" for b in s.encode()),
    "twice": lambda s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe=""),
    "json": lambda s: json.dumps(s)[1:-1],
    "json twice": lambda s: json.dumps(json.dumps(s))[1:-1],
    "unicode escapes": lambda s: re.sub("(....)", r"\\u\1", s.encode("utf-16-be").hex()),
    "json in a query": lambda s: urllib.parse.quote(json.dumps(s)[1:-1]),
    "html": html.escape,
    "html entities, decimal": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "html entities, hex": lambda s: "".join(f"&#x{ord(c):X};" for c in s),
    "base32": lambda s: base64.b32encode(s.encode()).decode(),
    "base32 after three bytes": lambda s: base64.b32encode(b"abc" + s.encode()).decode(),
    "base32 unpadded": lambda s: base64.b32encode(s.encode()).decode().rstrip("="),
    "xxd": lambda s: xxd(s.encode()),
    "xxd of more": lambda s: xxd(b"name=" + s.encode() + b"\nmore of it to come\n"),
    "hexdump -C": lambda s: hexdump(b"a: " + s.encode() + b"\n"),
    "hexdump": lambda s: words_of_two(s.encode() + b"\n"),
    "hex bytes": lambda s: s.encode().hex(" "),
    "hex bytes with colons": lambda s: s.encode().hex(":"),
    "blanks between": lambda s: spread(s, 1, " "),
    "dashes between": lambda s: spread(s, 1, "-"),
    "groups of three": lambda s: spread(s, 3, " "),
    "groups of four": lambda s: spread(s, 4, "-"),
    "groups of five": lambda s: spread(s, 5, " "),
}


def make_secrets(count: int) -> list[str]:
    chance = random.Random(20260214)
    alphabets = [
        string.ascii_letters + string.digits,
        string.ascii_letters + string.digits + "!#$%^&*()+/=?~ \"'<>\\",
        string.hexdigits.lower(),
        "äöü漢字🙂" + string.ascii_lowercase,
    ]
    made = []
    for number in range(count):
        alphabet = alphabets[number % len(alphabets)]
        text = "".join(chance.choice(alphabet) for _ in range(chance.randrange(8, 48)))
        made.append(f"s{text}e")
    return made
