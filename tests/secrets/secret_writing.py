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
