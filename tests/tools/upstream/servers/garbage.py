"""Something on stdio that is no MCP server."""

import sys

for _line in sys.stdin:
    sys.stdout.write("this is not JSON-RPC\n")
    sys.stdout.flush()
