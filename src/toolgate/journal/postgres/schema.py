"""The schema in the database: made by `toolgate db init`, checked before it is used."""

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from toolgate.core.errors import Misconfigured

if TYPE_CHECKING:
    from asyncpg import Connection

VERSION: Final = "1"
INIT: Final = "toolgate db init"


def statements() -> str:
    return files("toolgate.journal.postgres").joinpath("schema.sql").read_text("utf-8")


async def make(connection: "Connection") -> bool:
    """Make the schema in one transaction; False if it is there already. Raises Misconfigured."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('toolgate schema'))")
        if await _version(connection) is not None:
            await check(connection)
            return False
        await connection.execute(statements())
        return True


async def check(connection: "Connection") -> None:
    """Raise Misconfigured, with what to do, if nothing should be written to this database."""
    version = await _version(connection)
    if version is None:
        raise Misconfigured(f"the database has no schema of Toolgate: run `{INIT}` first")
    if version != VERSION:
        raise Misconfigured(
            f"the database has version {version} of the schema, this Toolgate needs {VERSION}:"
            " install the Toolgate that made it, or run `toolgate db migrate`"
        )
    for setting, loses in (("fsync", "the journal"), ("synchronous_commit", "commits")):
        if await connection.fetchval("SELECT current_setting($1)", setting) == "off":
            raise Misconfigured(
                f"the database has {setting}=off and can lose {loses} in a crash: set it to on"
            )
    if await _is_pooled(connection):
        raise Misconfigured(
            "a pooler in transaction mode is in front of the database: connect to PostgreSQL itself,"
            " or set the pooler to session mode"
        )


async def _version(connection: "Connection") -> str | None:
    there = await connection.fetchval("SELECT to_regclass('toolgate.meta') IS NOT NULL")
    if not there:
        return None
    found = await connection.fetchval("SELECT value FROM toolgate.meta WHERE name = 'schema'")
    return str(found)


async def _is_pooled(connection: "Connection") -> bool:
    """True if two statements may run on two connections of the server."""
    await connection.execute("SET toolgate.probe = 'here'")
    pids = {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(3)}
    kept = await connection.fetchval("SELECT current_setting('toolgate.probe', true)")
    return len(pids) > 1 or kept != "here"
