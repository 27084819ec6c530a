"""Say hello to the echo agent and print what it says, as it says it.

toolgate up &
python examples/first_run.py ws://127.0.0.1:8090/ws
"""

import asyncio
import sys
from pathlib import Path

from toolgate.client.sessions import connect
from toolgate.contracts.ingress_v1 import Delta

KEY = Path(".toolgate/api.key").read_text()


async def main(url: str) -> None:
    async with connect(url, user_id="me", api_key=KEY) as session:
        async for event in session.invoke("Hello, brave new world", agent_id="echo"):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
    print()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8090/ws"))
