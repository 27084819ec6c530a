"""Offer a tool of your own to an agent; it runs here, in this process, when the agent calls it.

toolgate up &
python examples/own_tool.py ws://127.0.0.1:8090/ws
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from toolgate.client.sessions import connect
from toolgate.client.toolbox import Toolbox
from toolgate.contracts.ingress_v1 import ApprovalRequired

KEY = Path(".toolgate/api.key").read_text()
toolbox = Toolbox()


@toolbox.tool("payments.quote", description="What does it cost?")
async def quote(args: dict[str, Any]) -> str:
    return f"{args['item']} costs 12 coins"


async def agree(asked: ApprovalRequired) -> bool:
    print(f"approving {asked.tool_name}: {asked.reason}")
    return True


async def main(url: str) -> None:
    async with connect(url, user_id="me", api_key=KEY, toolbox=toolbox, decide=agree) as session:
        asked = 'I ask: [[tool:payments.quote {"item": "the gate"}]]'
        print(await session.ask(asked, agent_id="script"))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8090/ws"))
