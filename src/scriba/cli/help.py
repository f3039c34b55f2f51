"""`scriba help`, and `scriba` alone: explains commands."""

import argparse

from scriba.cli.parsing.arguments import parser
from scriba.cli.parsing.commands import inner


def run(options: argparse.Namespace) -> int:
    found = parser()
    for word in options.words:
        commands = inner(found)
        if word not in commands:
            found.error(_stranger(word, list(commands)))
        found = commands[word]
    print(found.format_help(), end="")
    return 0


def _stranger(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    if not known:
        return f"no command {word!r} below it"
    near = get_close_matches(word, known, 1)
    return f"no command {word!r}; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    )
