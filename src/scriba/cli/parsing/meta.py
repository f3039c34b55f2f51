"""The arguments of the commands about `scriba` itself: help, version, completion."""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from scriba.cli.parsing.options import Commands, command

SHELLS: Final = ("bash", "zsh", "fish")


class Version(argparse.Action):
    """Found out when it is asked for: the mode depends on what can be loaded."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from scriba.cli.version import line

        print(line())
        parser.exit()


def meta(commands: Commands) -> None:
    completion = command(
        commands,
        "completion",
        "scriba.cli.completing.completion:run",
        "complete commands and options in a shell",
        "Writes a script that teaches a shell to complete commands, options and what they take.",
        epilog='bash: eval "$(scriba completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, '
        "after compinit. fish: scriba completion fish > ~/.config/fish/completions/scriba.fish",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))

    helped = command(
        commands,
        "help",
        "scriba.cli.help:run",
        "explain a command",
        "Explains a command, or lists all of them.",
    )
    helped.add_argument(
        "words", nargs="*", metavar="COMMAND", help="the command, such as topic create"
    )

    version = command(
        commands,
        "version",
        "scriba.cli.version:run",
        "show the version",
        "Shows the version, and whether records are worked on natively or in Python.",
    )
    version.add_argument("--json", action="store_true", help="write JSON")
