"""The tree of commands, as argparse has it."""

import argparse
from collections.abc import Iterator


def inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below this one, by name."""
    return {
        name: each
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, each in action.choices.items()
    }


def below(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """This one and all below it, each with the words that lead to it."""
    yield path, parser
    for name, each in inner(parser).items():
        yield from below(each, (*path, name))
