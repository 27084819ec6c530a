"""An MCP server whose tools are what a file says at the moment: `changing.py FILE`."""

import json
import sys
from pathlib import Path
from typing import Any


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "changing", "version": "1"},
            }
        case "tools/list":
            return {"tools": json.loads(Path(sys.argv[1]).read_text())}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{message['params']['name']} ran"}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result_of(message)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
