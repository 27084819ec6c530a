"""Be an agent: answer over HTTP, register with Toolgate, and be talked to like any other.

toolgate up &
python examples/own_agent.py http://127.0.0.1:8081 &
toolgate chat --agent parrot hello
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen


class Parrot(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in asked["message"]["content"].split():
            self.tell("delta", text=f"{word}! ")
        self.tell("done")

    def tell(self, event: str, **members: str) -> None:
        self.wfile.write(f"event: {event}\ndata: {json.dumps(members)}\n\n".encode())
        self.wfile.flush()


orchestrator = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8081"
token = open(".toolgate/internal.token").read()  # noqa: SIM115, PTH123 - an example
server = ThreadingHTTPServer(("127.0.0.1", 0), Parrot)
me = {"agent_id": "parrot", "endpoint": f"http://127.0.0.1:{server.server_port}"}
register = Request(  # noqa: S310 - the address is yours
    f"{orchestrator}/internal/agents",
    json.dumps(me).encode(),
    {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
)
with urlopen(register) as answer:  # noqa: S310 - as above
    print(answer.read().decode(), flush=True)
server.serve_forever()
