"""An MCP server by hand, which keeps every message it got: `plain.py FILE`."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("say", "pid", "wait", "work", "wrong", "lie", "ask", "die", "loop", "slow", "big")
TOOLS: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
TOOLS[NAMES.index("lie")]["outputSchema"] = {"type": "object", "required": ["sum"]}
TOOLS[NAMES.index("loop")]["outputSchema"] = {"type": "object", "allOf": [{"$ref": "#"}]}
TOOLS[NAMES.index("slow")]["outputSchema"] = {
    "type": "object",
    "properties": {"word": {"type": "string", "pattern": "^(a+)+$"}},
}
RESULTS: dict[str, Any] = {
    "say": {"content": [{"type": "text", "text": "said"}]},
    "work": {"content": [{"type": "text", "text": "worked"}]},
    "pid": {"content": [{"type": "text", "text": str(os.getpid())}]},
    "wrong": {"content": "not a list"},
    "lie": {"content": [], "structuredContent": {"product": 6}},
    "loop": {"content": [], "structuredContent": {}},
    "slow": {"content": [], "structuredContent": {"word": "a" * 64 + "!"}},
    "ask": {"resultType": "input_required", "content": [], "requestState": "more"},
}
ERRORS = {"break": -32603, "unknown": -32602}  # internal error, invalid params
# What is said beside the answer, or in its place: `ID` is the call's.
SAID = {
    "nulls": ['{"jsonrpc":"2.0","id":"ID","error":null,"result":{"content":[]}}'],
    "mumbles": ['{"jsonrpc":"2.0","id":"ID","error":"it broke"}'],
    "asks_back": [
        '{"jsonrpc":"2.0","id":"ID","method":"ping"}',
        '{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"said"}]}}',
    ],
    "repeats": [
        '{"jsonrpc":"2.0","id":"call-0","result":{"content":[]}}',
        '{"jsonrpc":"2.0","id":77,"result":{"content":[]}}',
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}',
        '{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"said"}]}}',
        '{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}',
    ],
    "halves": [
        '{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"\\ud83d"}]},"id":"ID"}'
    ],
    "deep": [f'{{"jsonrpc":"2.0","id":"ID","result":{"[" * 5000}{"]" * 5000}}}'],
    "parts": ['{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"bye"}]}}'],
}


def work() -> None:
    """Until it is let go: it does one thing at a time, and hears nothing meanwhile."""
    end = time.monotonic() + 30
    while not Path(sys.argv[1] + ".worked").exists() and time.monotonic() < end:
        time.sleep(0.01)


def result_of(message: dict[str, Any]) -> Any:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            match sys.argv[2:]:
                case ["unlisted"]:
                    return None
                case ["endless"]:
                    return {"tools": [], "nextCursor": "more"}
                case ["talkative"]:
                    large = {"type": "object", "description": "x" * 100_000}
                    named = [{**TOOLS[0], "name": f"say{n}"} for n in range(500)]
                    return {"tools": [{"name": "large", "inputSchema": large}, *named]}
                case ["reading"]:
                    reads = {"readOnlyHint": True}
                    return {"tools": [{**tool, "annotations": reads} for tool in TOOLS]}
                case _:
                    return {"tools": TOOLS}
        case "tools/call":
            if message["params"]["name"] == "die":
                os._exit(3)
            if message["params"]["name"] == "big":
                megabytes = message["params"]["arguments"]["megabytes"]
                return {"content": [{"type": "text", "text": "x" * (megabytes * 1_000_000)}]}
            if message["params"]["name"] == "work":
                work()
            return RESULTS.get(message["params"]["name"])
        case _:
            return None


with Path(sys.argv[1]).open("a", buffering=1) as kept:
    for line in sys.stdin:
        kept.write(line)
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if (name := message.get("params", {}).get("name")) in SAID:
            for said in SAID[name]:
                sys.stdout.write(said.replace("ID", message["id"]) + "\n")
            sys.stdout.flush()
            if name == "parts":
                break
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = result_of(message)
        if result is not None:
            answer["result"] = result
        elif message["method"] == "tools/call":
            if message["params"]["name"] not in ERRORS:
                continue
            answer["error"] = {"code": ERRORS[message["params"]["name"]], "message": "no"}
        else:
            answer["error"] = {"code": -32601, "message": "no such method"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
