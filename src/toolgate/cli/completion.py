"""`toolgate completion`: what a shell needs to complete our commands."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: eval "$(toolgate completion bash)", in ~/.bashrc to keep it.
    """
    found = get_completion_class(shell)
    assert found is not None
    main = click.get_current_context().find_root().command
    click.echo(found(main, {}, "toolgate", "_TOOLGATE_COMPLETE").source())
