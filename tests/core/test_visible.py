"""No character that cannot be seen, and no blank but the space, stays as it is."""

import sys
import unicodedata

from toolgate.core.visible import visible

UNSEEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"}
FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u2800\u3164\ufe00\ufe0f\uffa0\U000e0100"


def test_each_character_that_cannot_be_seen_is_escaped_and_no_other() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        kind = unicodedata.category(character)
        if character in " \n\t":
            assert visible(character) == character
        elif kind in UNSEEN or character in FILLERS:
            assert visible(character) == f"<U+{code:04X}>", hex(code)
        elif kind[0] in "LNPS" and character not in FILLERS:
            assert visible(character) == character, hex(code)


def test_what_is_visible_stays_as_it_is() -> None:
    text = "rm -rf /\t汉字 é <U+200B>\n"
    assert visible(text) == text
    assert visible(visible("a\u200b")) == "a<U+200B>"
