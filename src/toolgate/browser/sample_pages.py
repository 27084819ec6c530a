"""Pages to try a browser task on, where there is no network: the proxy itself answers for them.

Their host is of a domain that is reserved (RFC 2606), so that no real site is ever hidden by it.
"""

from typing import Final

SITE: Final = "http://pages.toolgate.example"


def _page(title: str, text: str, *links: str) -> str:
    ways = "".join(f'<li><a href="{SITE}{path}">{path}</a></li>' for path in links)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:20px/1.6 system-ui,sans-serif;max-width:34em;margin:4em auto;"
        "padding:0 1em;color:#1a2226}h1{color:#0f766e}a{color:#0f766e}</style>"
        f"<h1>{title}</h1><p>{text}</p><ul>{ways}</ul>"
    )


PAGES: Final = {
    f"{SITE}/": _page("The gate", "Every tool call passes here.", "/policy", "/evidence"),
    f"{SITE}/policy": _page("Policy", "Deny, ask, allow: whatever the order.", "/"),
    f"{SITE}/evidence": _page("Evidence", "Signed, so that anyone can check it.", "/"),
}
