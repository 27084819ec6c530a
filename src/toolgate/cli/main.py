"""The `toolgate` command: a table of commands, each loaded only when it is called."""

import errno
import importlib
import io
import sys
from typing import Any, Final

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from toolgate.cli.interrupts import INTERRUPTED, raise_again
from toolgate.core.errors import Misconfigured, ToolgateError

COMMANDS: Final = {  # name: (module under toolgate.cli, one line of help)
    "up": ("up", "Start everything in one process."),
    "demo": ("demo", "Play the whole story, step by step."),
    "console": ("console", "Print a link that signs in to the console."),
    "runner": ("runner", "Run tools for gateways elsewhere, in sandboxes of this machine."),
    "targets": ("targets", "List execution targets, set one, remove one."),
    "artifact": ("artifact", "Put files where tools can have them, and get what they kept."),
    "browser": ("browser", "Serve browser tasks over MCP."),
    "policy": ("policy", "Show, check, test, explain and simulate policies."),
    "ingress": ("ingress", "Start only the ingress, which clients connect to."),
    "orchestrator": ("orchestrator", "Start only the orchestrator: runs and their tools."),
    "chat": ("chat", "Talk to an agent in the terminal."),
    "evidence": ("evidence", "Show, export and verify what was done."),
    "restore": ("restore", "Go on with a home that was put back from a copy."),
    "audit": ("audit", "Query the audit log."),
    "approvals": ("approvals", "Show the calls that wait for a person, and answer them."),
    "runs": ("runs", "List agents' runs, show one, cancel one."),
    "pair": ("pair", "Show and approve the devices that wait to be paired."),
    "devices": ("devices", "List paired devices, and revoke one."),
    "token": ("token", "Make and end tokens for scripts."),
    "capabilities": ("capabilities", "List capabilities, register one, remove one."),
    "mcp": ("mcp", "Show the tools of MCP servers, and accept changed ones."),
    "task": ("task", "Run browser tasks, and see those that have run."),
    "events": ("events", "Show what happens, as it happens."),
    "settings": ("settings", "List every setting, its default and its meaning."),
    "doctor": ("doctor", "Try what this machine offers, and say how to get the rest."),
    "testkit": ("testkit", "Check your own end of a contract against its seed."),
    "completion": ("completion", "Print what a shell needs to complete commands."),
}


EXIT_CODES: Final = {
    0: "done, and the result is good",
    1: "failed, or the result is not good; stderr says why",
    2: "the command, a setting or a file is wrong; stderr says what to correct",
    INTERRUPTED: "ended by Ctrl-C",
}


class LazyGroup(click.Group):
    """The table of commands; a command is imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"toolgate.cli.{COMMANDS[cmd_name][0]}")
        raise_again()
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as unknown:
            raise NoSuchCommand(unknown.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table: importing every command takes seconds, at each press of Tab."""
        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """End a command in one line for an error of ours, or for a file that cannot be used."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # escape what the encoding cannot write
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except ToolgateError as failed:
            from toolgate.cli.terminal import plain  # noqa: PLC0415 - only for a mistake

            click.echo(f"toolgate: {plain(str(failed))}", err=True)
            sys.exit(2 if isinstance(failed, Misconfigured) else 1)
        except OSError as failed:
            if failed.errno == errno.EPIPE:
                raise  # the reader has closed the pipe: click ends the command silently
            from toolgate.cli.terminal import of_file, plain  # noqa: PLC0415 - only for a mistake

            click.echo(f"toolgate: {plain(of_file(failed))}", err=True)
            sys.exit(1)
        except UnicodeEncodeError as no_text:
            click.echo(
                f"toolgate: {no_text.object!r} cannot be sent: it must be valid UTF-8 text",
                err=True,
            )
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), means) for code, means in EXIT_CODES.items()])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toolgate")
def main() -> None:
    """The gate between AI agents and the world."""
