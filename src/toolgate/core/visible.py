"""Text in which no character is invisible or looks like another blank: `<U+200B>` in its place.

The one rule for what a person reads before a decision, at every surface. A newline and a tab stay:
each surface shows them in its own way.
"""

import re
from typing import Final

# Control and format characters, halves of characters, private ones, and blanks that are not the space.
UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\xa0\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\U000110bd\U000110cd\U00013430-\U0001343f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ue000-\uf8ff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U0010ffff"
)
_UNSEEN: Final = re.compile(f"[{UNSEEN}]")


def visible(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _UNSEEN.sub(escaped, text)


def escaped(found: re.Match[str]) -> str:
    """The escape of the character that was found."""
    return f"<U+{ord(found[0]):04X}>"
