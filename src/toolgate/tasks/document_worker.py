"""A process that reads documents for the tasks: main text of HTML, text and pages of PDF.

It is told nothing but the document, may use little memory, and is ended if it takes too long: pages
are written by strangers. Run by `document_reader.py`; on standard input and output, each message is a
length and MessagePack.
"""

import os
import re
import resource
import sys
import time
from io import BytesIO
from typing import Any, BinaryIO, Final
from urllib.parse import urljoin

import msgspec

MEMORY: Final = 1536 * 1024**2
MOST_LINKS: Final = 200
MOST_TABLES: Final = 50
MOST_ROWS: Final = 1000
MOST_PAGES: Final = 500
MOST_TEXT: Final = 2_000_000  # characters
XML_NAMESPACE: Final = "{http://www.w3.org/XML/1998/namespace}"


class Asked(msgspec.Struct):
    kind: str  # html or pdf
    url: str
    content: bytes


class Found(msgspec.Struct, rename="camel", omit_defaults=True):
    """The main text of a document; also what the item of a page carries as `main`."""

    title: str = ""
    byline: str = ""
    published: str = ""
    language: str = ""
    text: str = ""
    markdown: str = ""
    tables: list[list[list[str]]] = []
    links: list[dict[str, str]] = []
    pages: list[str] = []  # of a PDF
    page_count: int = 0
    total_length: int = 0  # of the text
    truncated: bool = False


def read_html(asked: Asked) -> Found:
    """The article of a page; an empty text where there is none."""
    # Extras of `browser`, half a second to import, and only this process ever needs them.
    import trafilatura  # noqa: PLC0415
    from trafilatura.xml import xmltotxt  # noqa: PLC0415

    html = asked.content.decode("utf-8", "replace")
    tree = trafilatura.load_html(html)
    if tree is None:
        return Found()
    language = str(tree.get("lang") or tree.get(f"{XML_NAMESPACE}lang") or "")
    text = trafilatura.extract(html, url=asked.url, include_comments=False) or ""
    rich: Any = trafilatura.bare_extraction(
        tree,
        url=asked.url,
        include_comments=False,
        include_formatting=True,
        include_links=True,
        with_metadata=False,
    )
    meta = trafilatura.extract_metadata(html, default_url=asked.url)
    found = Found(text=text or trafilatura.html2txt(html), language=language[:35])
    if rich is not None and rich.body is not None:
        found.markdown = xmltotxt(rich.body, include_formatting=True).strip()
        found.tables = _tables(rich.body)
        found.links = _links(rich.body, asked.url)
    if meta is not None:
        found.title, found.byline = meta.title or "", meta.author or ""
        found.published = meta.date or ""
    return found


def _tables(body: Any) -> list[list[list[str]]]:
    tables = []
    for table in list(body.iter("table"))[:MOST_TABLES]:
        rows = [
            [_tidy("".join(cell.itertext())) for cell in row.iter("cell")]
            for row in list(table.iter("row"))[:MOST_ROWS]
        ]
        if any(rows):
            tables.append(rows)
    return tables


def _links(body: Any, base: str) -> list[dict[str, str]]:
    links: list[dict[str, str]] = []
    for ref in body.iter("ref"):
        try:
            target = urljoin(base, ref.get("target") or "")
        except ValueError:
            continue
        if target.startswith(("http://", "https://")) and len(links) < MOST_LINKS:
            links.append({"text": _tidy("".join(ref.itertext())), "href": target})
    return links


def read_pdf(asked: Asked) -> Found:
    """The text of a PDF by its pages; scanned pages have none."""
    from pypdf import PdfReader  # noqa: PLC0415

    reader = PdfReader(BytesIO(asked.content))
    if reader.is_encrypted and not reader.decrypt(""):
        return Found()
    meta = reader.metadata
    found = Found(page_count=len(reader.pages))
    if meta is not None:
        found.title, found.byline = str(meta.title or ""), str(meta.author or "")
    left = MOST_TEXT
    for number in range(min(found.page_count, MOST_PAGES)):
        text = reader.pages[number].extract_text()[:left]
        left -= len(text)
        found.pages.append(text)
        if left <= 0:
            break
    found.truncated = len(found.pages) < found.page_count
    found.text = "\n\n".join(page.strip() for page in found.pages).strip()
    return found


def _tidy(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


READERS: Final = {"html": read_html, "pdf": read_pdf}


def answer(asked: Asked) -> Found:
    try:
        found = READERS[asked.kind](asked)
    except Exception:  # noqa: BLE001 - a document that cannot be read has no text
        return Found()
    found.text, found.markdown = found.text[:MOST_TEXT], found.markdown[:MOST_TEXT]
    found.total_length = len(found.text)
    return found


def serve(given: BinaryIO, told: BinaryIO, *, cpu_s: int) -> None:
    """Answer until the input ends; a document that takes more CPU than this ends the process."""
    decode, encode = msgspec.msgpack.Decoder(Asked).decode, msgspec.msgpack.Encoder().encode
    while len(head := given.read(4)) == 4:
        asked = decode(given.read(int.from_bytes(head)))
        most = int(time.process_time()) + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        content = encode(answer(asked))
        told.write(len(content).to_bytes(4) + content)
        told.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints would break the protocol
    serve(sys.stdin.buffer, output, cpu_s=int(sys.argv[1]))
