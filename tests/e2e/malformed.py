"""Messages of a client with one thing wrong, made from the messages' own models."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from tests.e2e.raw import BINARY, TEXT
from toolgate.contracts import ingress_v1 as wire

Malformed = tuple[str, int, bytes]  # the rule that it breaks, the frame's opcode and payload
GOOD: dict[str, dict[str, Any]] = {
    "hello": {"user_id": "u", "api_key": "k"},
    "agent_invoke": {
        "request_id": "q", "agent_id": "a", "message": {"role": "user", "content": "c"},
    },
    "tool_result": {"run_id": "r", "tool_call_id": "t", "ok": True},
    "approval_decision": {"run_id": "r", "approval_id": "a", "decision": "approve"},
    "cancel_run": {"run_id": "r"},
}  # fmt: skip
MODELS = {kind.__struct_config__.tag: kind for kind in get_args(wire.AnyClientMessage)}
assert MODELS.keys() == GOOD.keys()


def malformed_frames(chance: random.Random, count: int) -> list[Malformed]:
    """So many, all rules in turn; none of them can be read as a message."""
    found: list[Malformed] = []
    names = list(RULES)
    while len(found) < count:
        rule = names[len(found) % len(names)]
        payload = RULES[rule](chance)
        opcode = BINARY if rule == "binary" else TEXT
        if opcode == TEXT:  # bytes that are not UTF-8 close the connection
            payload = payload.decode(errors="ignore").encode()
        if opcode == BINARY or not _is_readable(payload):
            found.append((rule, opcode, payload))
    return found


def _is_readable(payload: bytes) -> bool:
    try:
        wire.decode_client(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _good(chance: random.Random) -> dict[str, Any]:
    kind = chance.choice(list(GOOD))
    return {"type": kind, "ts": chance.randrange(2**40), **copy.deepcopy(GOOD[kind])}


def _value(chance: random.Random, depth: int = 2) -> Any:
    """Any JSON value."""
    match chance.randrange(8 if depth else 6):
        case 0:
            return None
        case 1:
            return chance.choice([True, False])
        case 2:
            return chance.choice([0, -1, 2**31, 2**53 + 1, 2**63, -(2**70), chance.randrange(9**9)])
        case 3:
            return chance.choice([0.5, -1e300, 1e-300, chance.random()])
        case 4:
            return "".join(chr(chance.randrange(32, 0x2FFF)) for _ in range(chance.randrange(9)))
        case 5:
            return chance.choice(["", "x" * 300, "\x00", "null", "\u2028"])
        case 6:
            return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return {str(n): _value(chance, depth - 1) for n in range(chance.randrange(4))}


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def _missing(chance: random.Random) -> bytes:
    message = _good(chance)
    required = [one.name for one in msgspec.structs.fields(MODELS[message["type"]]) if one.required]
    del message[chance.choice(["type", *required])]
    return _dump(message)


def _missing_within(chance: random.Random) -> bytes:
    message = {"type": "agent_invoke", "ts": 1, **GOOD["agent_invoke"]}
    message["message"] = {chance.choice(["role", "content"]): _value(chance)}
    return _dump(message)


def _wrong_type(chance: random.Random) -> bytes:
    message = _good(chance)
    fields = [one.name for one in msgspec.structs.fields(MODELS[message["type"]])]
    message[chance.choice(["type", *fields])] = _value(chance)
    return _dump(message)


def _unknown_type(chance: random.Random) -> bytes:
    kind = chance.choice(["HELLO", "run_started", "done", "", " hello", "hello ", "__proto__"])
    return _dump({**_good(chance), "type": kind})


def _not_an_object(chance: random.Random) -> bytes:
    return _dump(chance.choice([_value(chance), [_good(chance)], "hello", 1, None]))


def _cut_short(chance: random.Random) -> bytes:
    whole = _dump(_good(chance))
    return whole[: chance.randrange(len(whole))]


def _something_after(chance: random.Random) -> bytes:
    return _dump(_good(chance)) + chance.choice([b"x", b"{}", b"]", b"\x00", b",", b"//"])


def _damaged(chance: random.Random) -> bytes:
    text = bytearray(_dump(_good(chance)))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text))
        match chance.randrange(3):
            case 0:
                text[at] = chance.randrange(256)
            case 1:
                del text[at : at + chance.randint(1, 9)]
            case _:
                text[at:at] = chance.choice([b'"', b"{", b"[", b"null", b"\\u", b"1e999", b"NaN"])
        if not text:
            break
    return bytes(text)


def _too_deep(chance: random.Random) -> bytes:
    depth = chance.randint(1_001, 20_000)
    opening = chance.choice([b"[", b'{"type":'])
    return (opening * depth)[:60_000]


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(200))


RULES: dict[str, Callable[[random.Random], bytes]] = {
    "missing": _missing,
    "missing within": _missing_within,
    "wrong type": _wrong_type,
    "unknown type": _unknown_type,
    "not an object": _not_an_object,
    "cut short": _cut_short,
    "something after": _something_after,
    "damaged": _damaged,
    "too deep": _too_deep,
    "noise": _noise,
    "binary": _noise,
}
