"""A transport for the MCP SDK to a program on stdio, with a bound on what one message may hold.

The SDK's own puts a line together without one, at a cost that grows with the square of its length.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

from toolgate.domain.capabilities import Server

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 8 * 1024 * 1024
LEAVE_S: Final = 2.0  # for a program to go by itself once its stdin is closed
AHEAD: Final = 16  # messages that may wait


@contextlib.asynccontextmanager
async def stdio_transport(server: Server, *, name: str) -> AsyncIterator[tuple[Any, Any]]:
    """Raises OSError where the program cannot be started."""
    import anyio  # noqa: PLC0415 - comes with the SDK, which is imported with the first server
    from mcp.client.stdio import get_default_environment  # noqa: PLC0415

    process = await asyncio.create_subprocess_exec(
        server.command,
        *server.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # a server's own affair; it may hold anything
        env={**get_default_environment(), **dict(server.env)},
        limit=MAX_MESSAGE,
        start_new_session=True,
    )
    into, read = anyio.create_memory_object_stream[Any](AHEAD)
    write, out_of = anyio.create_memory_object_stream[Any](AHEAD)
    tasks = [
        asyncio.create_task(_read(process, into, name)),
        asyncio.create_task(_write(process, out_of, into)),
    ]
    try:
        yield read, write
    finally:
        for stream in (read, write):
            stream.close()
        await _stop(process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (into, out_of):
            stream.close()


async def _read(process: asyncio.subprocess.Process, into: Any, name: str) -> None:
    from mcp import types  # noqa: PLC0415
    from mcp.shared.message import SessionMessage  # noqa: PLC0415

    assert process.stdout is not None
    with into:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                log.warning("mcp_message_too_large name=%s limit=%d", name, MAX_MESSAGE)
                return
            if not line:
                return
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                await into.send(SessionMessage(message))
            except ValueError as garbage:
                await into.send(garbage)


async def _write(process: asyncio.subprocess.Process, out_of: Any, into: Any) -> None:
    assert process.stdin is not None
    try:
        async for message in out_of:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        into.close()  # the session learns that nobody listens


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Its stdin is closed, then it has a moment, then it and all its children are killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(LEAVE_S):
            # A program that is stuck in writing cannot see that its stdin is closed.
            await asyncio.gather(process.wait(), _drain(process))
    except TimeoutError:
        pass
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError, RuntimeError):
        while await process.stdout.read(65536):
            pass
