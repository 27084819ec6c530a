"""Pages that try to send something by a task that only reads: a form by POST, however it is sent."""

from dataclasses import dataclass, field
from typing import Any, Final

SELECT: Final = {"mode": "selector"}
FORM: Final = "<form id=f method=post action=/sent><input name=name value=x>"
SEND: Final = "<script>f.submit()</script>"
BUTTON: Final = {"mode": "selector", "selector": "#b"}


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    pages: dict[str, str]  # by path; {other} is the same site under another name
    template: str = "batch_extract_pages"
    inputs: dict[str, Any] = field(default_factory=dict)
    urls: tuple[str, ...] = ("/a",)


def searching(form: str) -> tuple[str, dict[str, Any]]:
    return "search_extract", {
        "query": "x",
        "searchField": {**SELECT, "selector": "input"},
        "waitForResults": {"type": "stable"},
    } | ({"submit": BUTTON} if "id=b" in form else {})


def _search(name: str, form: str) -> Attack:
    template, inputs = searching(form)
    return Attack(name, {"/a": form}, template, inputs)


def _next(name: str, page: str) -> Attack:
    return Attack(
        name, {"/a": page}, "paginated_extract", {"pagination": {"next": BUTTON, "maxPages": 2}}
    )


_POST_BY_SCRIPT: Final = (
    "const g=document.createElement('form');g.method='post';g.action='/sent';"
    "document.body.append(g);g.submit()"
)
_WORKER: Final = (
    "self.addEventListener('install',()=>self.skipWaiting());"
    "self.addEventListener('activate',e=>e.waitUntil(clients.claim()));"
    "self.addEventListener('fetch',e=>{if(e.request.method==='POST')"
    "e.respondWith(fetch(e.request.url,{method:'POST'}))})"
)
_REGISTERS: Final = (
    "<p id=o>no<script>navigator.serviceWorker.register('/worker.js').then(()=>"
    "navigator.serviceWorker.ready).then(()=>{o.textContent='ready'})</script>"
)

ATTACKS: Final = [
    Attack("submitted at once", {"/a": FORM + "</form>" + SEND}),
    Attack("submitted later", {"/a": FORM + "</form><script>setTimeout(()=>f.submit(),60)</script>"}),
    Attack("in a new tab", {"/a": FORM.replace("<form", "<form target=_blank") + "</form>" + SEND}),
    Attack(
        "in a window that a script opened",
        {
            "/a": FORM.replace("<form", "<form target=w")
            + "</form><script>window.open('about:blank','w');f.submit()</script>"
        },
    ),
    Attack(
        "in a frame of the page",
        {"/a": "<iframe name=w></iframe>" + FORM.replace("<form", "<form target=w") + "</form>" + SEND},
    ),
    Attack("by a frame", {"/a": "<iframe src=/b></iframe>", "/b": FORM + "</form>" + SEND}),
    Attack(
        "by a frame of another site",
        {"/a": "<iframe src='{other}/b'></iframe>", "/b": FORM + "</form>" + SEND},
    ),
    Attack(
        "by a frame in a frame of another site",
        {
            "/a": "<iframe src='{other}/b'></iframe>",
            "/b": "<iframe src=/c></iframe>",
            "/c": FORM + "</form>" + SEND,
        },
    ),
    Attack("at the top by a frame", {"/a": "<iframe src=/b></iframe>",
        "/b": FORM.replace("<form", "<form target=_top") + "</form>" + SEND}),
    Attack("by a frame without a page", {"/a": "<iframe srcdoc=\"<form id=f method=post action=/sent>"
        "</form><script>f.submit()</script>\"></iframe>"}),
    Attack("after a refresh", {"/a": "<meta http-equiv=refresh content='0;url=/b'>",
        "/b": FORM + "</form>" + SEND}),
    Attack("after a redirect that keeps the method", {"/a": FORM.replace("/sent", "/kept?307") + "</form>" + SEND}),
    Attack("after a permanent redirect", {"/a": FORM.replace("/sent", "/kept?308") + "</form>" + SEND}),
    Attack("as the page is left", {"/a": FORM + "</form><script>onbeforeunload=onpagehide=()=>f.submit()"
        "</script>", "/b": "<p>Next"}, urls=("/a", "/b", "/b")),
    Attack("through a service worker", {"/w": _REGISTERS, "/worker.js": _WORKER,
        "/a": FORM + "</form>" + SEND}, urls=("/w", "/a")),
    Attack("through a service worker of a frame's site", {
        "/w": "<iframe src='{other}/v'></iframe>", "/v": _REGISTERS, "/worker.js": _WORKER,
        "/a": "<iframe src='{other}/b'></iframe>", "/b": FORM + "</form>" + SEND}, urls=("/w", "/a")),
    Attack("compared", {"/a": FORM + "</form>" + SEND}, "multi_tab_compare"),
    Attack("pictured", {"/a": FORM + "</form>" + SEND}, "screenshot_page"),
    Attack("printed", {"/a": FORM + "</form>" + SEND}, "pdf_page"),
    _search("search by Enter", "<form method=post action=/sent><input name=q></form>"),
    _search("search by a button", FORM + "<button id=b>Find</button></form>"),
    _search("formaction of a GET form",
        "<form action=/results><input name=q><button id=b formmethod=post formaction=/sent>Go</button></form>"),
    _search("a GET form that a script turns into a POST",
        "<form id=f action=/results onsubmit=\"f.method='post';f.action='/sent'\"><input name=q></form>"),
    _search("another form beside a GET form", "<form action=/results onsubmit=\"event.preventDefault();"
        f"{_POST_BY_SCRIPT}\"><input name=q></form>"),
    _search("a dialog that sends as it closes", "<dialog open><form method=dialog onsubmit=\""
        f"{_POST_BY_SCRIPT}\"><input name=q></form></dialog>"),
    _search("a form in a shadow root", "<my-f></my-f><input name=q onkeydown=\"document.querySelector('my-f')"
        ".shadowRoot.querySelector('form').submit()\"><script>customElements.define('my-f',class extends "
        "HTMLElement{constructor(){super();this.attachShadow({mode:'open'}).innerHTML="
        "'<form method=post action=/sent></form>'}})</script>"),
    _search("requestSubmit with a submitter", FORM + "<button id=s formaction='/sent'>x</button></form>"
        "<input name=q onkeydown='f.requestSubmit(s)'>"),
    _next("a next that is a form's button", FORM + "<button id=b>Next</button></form>"),
    _next("a next that opens a window", FORM.replace("<form", "<form target=w") + "</form>"
        "<button id=b onclick=\"window.open('','w');f.submit()\">Next</button>"),
    _next("a link that a script makes a POST", f"<a id=b href=/n/2 onclick=\"event.preventDefault();{_POST_BY_SCRIPT}\">Next</a>"),
]  # fmt: skip

# What stays allowed: reading by GET, and requests that scripts make by themselves.
ALLOWED: Final = [
    Attack("a beacon", {"/a": "<p>Text<script>navigator.sendBeacon('/sent','a=b')</script>"}),
    Attack("a beacon as the page is left", {
        "/a": "<p>Text<script>onbeforeunload=()=>{navigator.sendBeacon('/sent','a=b')}</script>",
        "/b": "<p>Next"}, urls=("/a", "/b")),
    Attack("a fetch", {"/a": "<p>Text<script>fetch('/sent',{method:'POST',body:'a=b'})</script>"}),
    _search("a search by GET", "<form action=/results><input name=q></form>"),
]  # fmt: skip
