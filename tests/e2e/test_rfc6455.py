"""RFC 6455 by hand-made frames, named after the sections of the Autobahn suite.

A breach of the protocol, or a text that is not UTF-8, closes the connection; a text that is no message is
answered with `invalid_message`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.raw import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Raw, frame, raw_client
from tests.e2e.ways import API_KEY, TOGETHER, Running, installed
from toolgate.contracts.ingress_v1 import MAX_MESSAGE_BYTES, CloseCode, ErrorCode

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = {"type": "hello", "ts": 1, "user_id": "u1", "api_key": API_KEY}
ACK, REFUSED = "hello_ack", "error"
Heard = tuple[int, bytes | int | str]  # opcode; a pong's payload, a close's code or a text's type


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    hear: Sequence[Heard]
    chop: int = 0  # octets that the network delivers at a time; 0: all at once


def hello(size: int = 0, user: str = "u1") -> bytes:
    """A hello of so many bytes."""
    text = json.dumps({**HELLO, "user_id": user, "client_meta": ""}, ensure_ascii=False).encode()
    return text.replace(b'""', b'"' + b"x" * max(0, size - len(text)) + b'"')


def fragments(payload: bytes, size: int, *, opcode: int = TEXT, between: bytes = b"") -> bytes:
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
    last = len(pieces) - 1
    return between.join(
        frame(CONTINUATION if number else opcode, piece, fin=number == last)
        for number, piece in enumerate(pieces)
    )


def goodbye(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


acknowledged: list[Heard] = [(TEXT, ACK)]
told: list[Heard] = [(TEXT, REFUSED)]
breach: list[Heard] = [(CLOSE, CloseCode.PROTOCOL_ERROR)]
not_utf8: list[Heard] = [(CLOSE, CloseCode.NOT_UTF8)]
too_big: list[Heard] = [(CLOSE, CloseCode.MESSAGE_TOO_BIG)]
HALF = len(hello()) // 2
FIRST = frame(TEXT, hello()[:HALF], fin=False)
SECOND = frame(CONTINUATION, hello()[HALF:])

FRAMING = [
    Case("an empty text", frame(TEXT), told),
    *(
        Case(f"a text of {size} bytes", frame(TEXT, hello(size)), acknowledged)
        for size in (125, 126, 127, 128, 65_535, 65_536)
    ),
    Case("a text in chops of 997 octets", frame(TEXT, hello(65_536)), acknowledged, chop=997),
    *(
        Case(f"a binary of {size} bytes", frame(BINARY, b"\xfe" * size), told)
        for size in (0, 125, 126, 127, 128, 65_535, 65_536)
    ),
    Case("an unmasked frame", frame(TEXT, hello(), masked=False), breach),
    Case(
        "a length in more bytes than it needs", frame(TEXT, b"{}", length=b"\x7e\x00\x02"), breach
    ),
    Case(
        "a 64-bit length with the top bit", frame(TEXT, b"", length=b"\x7f" + b"\xff" * 8), breach
    ),
]
PINGS = [
    Case("an empty ping", frame(PING), [(PONG, b"")]),
    Case("a ping with a text", frame(PING, b"Hello"), [(PONG, b"Hello")]),
    Case("a ping with bytes", frame(PING, b"\x00\xff\xfe"), [(PONG, b"\x00\xff\xfe")]),
    Case("a ping of 125 bytes", frame(PING, b"\xfe" * 125), [(PONG, b"\xfe" * 125)]),
    Case("a ping of 126 bytes", frame(PING, b"\xfe" * 126), breach),
    Case("a ping by single octets", frame(PING, b"\xfe" * 125), [(PONG, b"\xfe" * 125)], chop=1),
    Case("an empty pong that nobody asked for", frame(PONG), []),
    Case("a pong that nobody asked for", frame(PONG, b"unasked"), []),
    Case("a pong, then a ping", frame(PONG, b"a") + frame(PING, b"b"), [(PONG, b"b")]),
    Case(
        "ten pings at once",
        b"".join(frame(PING, b"%d" % n) for n in range(10)),
        [(PONG, b"%d" % n) for n in range(10)],
    ),
    Case(
        "ten pings by single octets",
        b"".join(frame(PING, b"%d" % n) for n in range(10)),
        [(PONG, b"%d" % n) for n in range(10)],
        chop=1,
    ),
]
RESERVED_BITS = [
    *(
        Case(f"reserved bits {bits:03b} on a text", frame(TEXT, hello(), rsv=bits), breach)
        for bits in range(1, 8)
    ),
    Case("a reserved bit on a binary", frame(BINARY, b"x", rsv=2), breach),
    Case("a reserved bit on a ping", frame(PING, b"x", rsv=1), breach),
    Case("a reserved bit on a close", frame(CLOSE, b"\x03\xe8", rsv=1), breach),
    Case(
        "a reserved bit after a good message",
        frame(TEXT, hello()) + frame(TEXT, b"{}", rsv=4),
        breach,
    ),
]
OPCODES = [
    *(
        Case(f"reserved opcode {opcode}{name}", frame(opcode, payload), breach)
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
        for name, payload in (("", b""), (" with a payload", b"x"))
    ),
]
FRAGMENTATION = [
    Case("a ping in two fragments", frame(PING, b"a", fin=False) + frame(0, b"b"), breach),
    Case("a pong in two fragments", frame(PONG, b"a", fin=False) + frame(0, b"b"), breach),
    Case("a close in two fragments", frame(CLOSE, b"\x03", fin=False) + frame(0, b"b"), breach),
    Case("a text in two fragments", FIRST + SECOND, acknowledged),
    Case("a text in two fragments by single octets", FIRST + SECOND, acknowledged, chop=1),
    Case("a binary in two fragments", fragments(b"abcdef", 3, opcode=BINARY), told),
    Case(
        "a ping between the fragments",
        FIRST + frame(PING, b"now") + SECOND,
        [(PONG, b"now"), *acknowledged],
    ),
    Case(
        "a ping after each fragment of one byte",
        fragments(hello(), 1, between=frame(PING, b"p")),
        [*[(PONG, b"p")] * (len(hello()) - 1), *acknowledged],
    ),
    Case("a pong between the fragments", FIRST + frame(PONG, b"x") + SECOND, acknowledged),
    Case("a text within a text", FIRST + frame(TEXT, b"{}"), breach),
    Case("a binary within a text", FIRST + frame(BINARY, b"{}", fin=False), breach),
    Case("a continuation of nothing", frame(CONTINUATION, b"{}"), breach),
    Case("a continuation of nothing, not the last", frame(0, b"{}", fin=False), breach),
    Case(
        "a continuation after the end",
        FIRST + SECOND + frame(CONTINUATION, b"more"),
        breach,
    ),
    Case(
        "empty fragments",
        frame(TEXT, b"", fin=False) + frame(0, hello(), fin=False) + frame(0, b"", fin=False)
        + frame(0),
        acknowledged,
    ),
    Case("fragments that are all empty", frame(TEXT, b"", fin=False) + frame(0), told),
    Case(
        "two texts in fragments, one after the other",
        FIRST + SECOND + fragments(b"[]", 1),
        [*acknowledged, *told],
    ),
    Case("a close between the fragments", FIRST + goodbye(1000), [(CLOSE, 1000)]),
]  # fmt: skip
TEXTS = {
    "two bytes": "κόσμε",
    "three bytes": "统一接入层",
    "four bytes": "𝄞😀",
    "the ends of each length": "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff",
    "what is no character": "\ufffe\uffff\U0001fffe",
}
NO_TEXTS = {
    "a continuation byte alone": b"\x80",
    "a first byte alone": b"\xc3",
    "a first byte before a letter": b"\xc3(",
    "an overlong slash in two bytes": b"\xc0\xaf",
    "an overlong slash in three": b"\xe0\x80\xaf",
    "an overlong slash in four": b"\xf0\x80\x80\xaf",
    "half of a pair": b"\xed\xa0\x80",
    "both halves of a pair": b"\xed\xa0\x80\xed\xb0\x80",
    "beyond the last": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "six bytes": b"\xfc\x84\x80\x80\x80\x80",
    "no byte of any": b"\xfe\xff",
}
UTF8 = [
    *(
        Case(f"{name}, {how}", data, acknowledged)
        for name, text in TEXTS.items()
        for how, data in (
            ("whole", frame(TEXT, hello(user=text))),
            ("cut within characters", fragments(hello(user=text), 1)),
        )
    ),
    *(
        Case(f"{name}, {how}", data, not_utf8)
        for name, wrong in NO_TEXTS.items()
        for how, data in (
            ("whole", frame(TEXT, hello().replace(b"u1", wrong))),
            ("in fragments", fragments(hello().replace(b"u1", wrong), 1)),
        )
    ),
]
CLOSING = [
    *(
        Case(f"close code {code}", goodbye(code, b"bye"), [(CLOSE, 1000)])
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
    ),
    *(
        Case(f"close code {code}, which may not be sent", goodbye(code), breach)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    ),
    Case("a close without a code", frame(CLOSE), [(CLOSE, 1000)]),
    Case("a close of one byte", frame(CLOSE, b"\x03"), breach),
    Case("a close with the longest reason", goodbye(1000, b"x" * 123), [(CLOSE, 1000)]),
    Case("a close with too long a reason", goodbye(1000, b"x" * 124), breach),
    # The parser reads all frames that came together before the first is answered.
    Case("a close, then another", goodbye(1000) + goodbye(1001), breach),
    Case("a close with a reason that is not UTF-8", goodbye(1000, b"\xce\xba\xe1"), not_utf8),
    Case("a close, then a ping", goodbye(1000) + frame(PING, b"late"), [(CLOSE, 1000)]),
    Case("a close, then a text", goodbye(1000) + frame(TEXT, hello()), [(CLOSE, 1000)]),
    Case(
        "a text, then a close",
        frame(TEXT, hello()) + goodbye(1000),
        [(CLOSE, 1000)],
    ),
]
LIMITS = [
    *(
        Case(f"the largest text, in fragments of {size}", fragments(hello(65_536), size),
             acknowledged)
        for size in (64, 256, 1024, 4096, 16_384, 32_768)
    ),
    Case("one byte more", frame(TEXT, hello(MAX_MESSAGE_BYTES + 1)), too_big),
    Case("one byte more, in fragments", fragments(hello(MAX_MESSAGE_BYTES + 1), 4096), too_big),
    Case("one binary byte more", frame(BINARY, b"x" * (MAX_MESSAGE_BYTES + 1)), too_big),
    Case("a length of 4 GiB, and no more", frame(TEXT, length=b"\x7f" + (2**32).to_bytes(8, "big")),
         too_big),
    Case("a thousand messages at once", frame(TEXT, b"[]") * 1000, told * 1000),
]  # fmt: skip
MISC = [
    Case("a text in the fragments of a network", fragments(hello(65_536), 1300), acknowledged),
    Case("a frame of compressed data", frame(TEXT, b"\xaa\x56\x04", rsv=4), breach),
]
SECTIONS = {
    "1 framing": FRAMING,
    "2 pings": PINGS,
    "3 reserved bits": RESERVED_BITS,
    "4 opcodes": OPCODES,
    "5 fragmentation": FRAGMENTATION,
    "6 utf-8": UTF8,
    "7 close": CLOSING,
    "9 limits": LIMITS,
    "10 and 12 misc": MISC,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with installed(TOGETHER, tmp_path_factory.mktemp("rfc6455")) as one:
        yield one


def what(opcode: int, payload: bytes) -> Heard:
    match opcode:
        case _ if opcode == CLOSE:
            return opcode, int.from_bytes(payload[:2], "big")
        case _ if opcode == TEXT:
            message = json.loads(payload)
            if message["type"] == REFUSED:
                assert message["code"] == ErrorCode.INVALID_MESSAGE
            return opcode, message["type"]
        case _:
            return opcode, payload


async def play(case: Case, raw: Raw) -> None:
    step = case.chop or len(case.data)
    for at in range(0, len(case.data), step):
        raw.send(case.data[at : at + step])
        if case.chop:
            await asyncio.sleep(0)
    for expected in case.hear:
        heard = what(*await raw.receive())
        while heard == (TEXT, ACK) and expected[0] == CLOSE:  # it was quicker than the goodbye
            heard = what(*await raw.receive())
        assert heard == expected, case.name
    if case.hear and case.hear[-1][0] == CLOSE:
        await raw.until_cut()
        return
    raw.send(frame(PING, b"still?") + frame(TEXT, b"[]"))
    after = {what(*await raw.receive()), what(*await raw.receive())}
    assert after == {(PONG, b"still?"), (TEXT, REFUSED)}, case.name


@pytest.mark.parametrize("section", SECTIONS)
async def test_every_case_of(section: str, running: Running) -> None:
    """Each gets its answer, a breach closes its own connection, and nobody else is disturbed."""
    bystander = await running.connect(user="bystander")
    names = [case.name for case in SECTIONS[section]]
    assert len(set(names)) == len(names)
    for case in SECTIONS[section]:
        async with raw_client(running.ws) as raw:
            await play(case, raw)
    await bystander.invoke("undisturbed", request_id=section)
    heard = await bystander.hear_until("done", "error")
    assert "".join(one.get("text", "") for one in heard) == "undisturbed"
    await bystander.close()


async def test_compression_is_offered_and_not_taken_up(running: Running) -> None:
    """Sections 12 and 13: without the extension no frame may be compressed, either way."""
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    async with raw_client(running.ws, headers=offer) as raw:
        assert b"sec-websocket-extensions" not in raw.head.lower()
        raw.send(frame(TEXT, hello(2000)))
        assert what(*await raw.receive()) == (TEXT, ACK)
