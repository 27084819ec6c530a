"""An MCP server on stdio that appends a line to a file for each call: `till.py FILE`.

The file is what the tests count. Some calls pause before or after the line is written, so that a
kill also finds calls that have not taken effect, and calls that have but are not answered.
"""

import json
import random
import sys
import time
from typing import Any, Final

LONGEST_S: Final = 0.05
SCHEMA: Final = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TOOLS: Final = [
    {"name": "add", "inputSchema": SCHEMA},
    {"name": "pay", "inputSchema": SCHEMA},
    {"name": "look", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
]


def pause() -> None:
    time.sleep(random.random() ** 6 * LONGEST_S)


def result_of(message: dict[str, Any], file: str) -> Any:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "till", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            name, arguments = message["params"]["name"], message["params"]["arguments"]
            pause()
            with open(file, "a") as log:  # noqa: PTH123 - pathlib costs a tenth of a second
                log.write(f"{name} {arguments['id']}\n")
            pause()
            return {"content": [{"type": "text", "text": f"counted {arguments['id']}"}]}
        case _:
            return {}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = result_of(message, sys.argv[1])
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
