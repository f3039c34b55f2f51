"""What can follow where on the command line."""

import argparse
import enum
from typing import NamedTuple

from scriba.cli.parsing.commands import below, inner


class Source(enum.Enum):
    """Where the words for a value come from."""

    NOWHERE = "nowhere"
    WORDS = "words"
    FILES = "files"
    DIRECTORIES = "directories"
    TOPICS = "topics"
    GROUPS = "groups"
    PROFILES = "profiles"


class Value(NamedTuple):
    source: Source
    words: tuple[str, ...] = ()


class Option(NamedTuple):
    names: tuple[str, ...]
    summary: str
    value: Value | None
    """None for an option that takes none."""


class CommandNode(NamedTuple):
    """One command, or group of commands: what may stand after its words."""

    path: str
    commands: dict[str, str]
    """Each with what it does."""
    options: tuple[Option, ...]
    value: Value


ASK = {
    Source.TOPICS: "scriba topic list --names --timeout 1",
    Source.GROUPS: "scriba group list --names --timeout 1",
    Source.PROFILES: "scriba profile list --names",
}
"""The commands that tell names, one a line."""


def places(top: argparse.ArgumentParser) -> list[CommandNode]:
    return [_place(" ".join(["scriba", *path]), parser) for path, parser in below(top)]


def _place(path: str, parser: argparse.ArgumentParser) -> CommandNode:
    options = []
    value = Value(Source.NOWHERE)
    commands: dict[str, str] = {}
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._get_subactions()}
            commands = {name: told.get(name, "") for name in action.choices}
        elif action.option_strings:
            takes = None if action.nargs == 0 else _value(action, path)
            options.append(Option(tuple(action.option_strings), summary(action.help), takes))
        elif value.source is Source.NOWHERE:
            value = _value(action, path)
    if path == "scriba help":
        value = Value(Source.WORDS, tuple(inner(_top())))
    return CommandNode(path, commands, tuple(options), value)


def _top() -> argparse.ArgumentParser:
    from scriba.cli.parsing.arguments import parser

    return parser()


def _value(action: argparse.Action, path: str) -> Value:
    if action.choices is not None:
        return Value(Source.WORDS, tuple(map(str, action.choices)))
    name = action.metavar if isinstance(action.metavar, str) else ""
    if name == "FILE" or name == "PATH":
        return Value(Source.FILES)
    if name == "DIR":
        return Value(Source.DIRECTORIES)
    creates = path in ("scriba topic create", "scriba profile add")
    if name.startswith("TOPIC") and not creates:
        return Value(Source.TOPICS)
    if name == "GROUP":
        return Value(Source.GROUPS)
    if "--profile" in action.option_strings or (path.startswith("scriba profile") and not creates):
        return Value(Source.PROFILES if name == "NAME" else Source.NOWHERE)
    return Value(Source.NOWHERE)


def summary(text: str | None) -> str:
    """An explanation without its details."""
    return (text or "").partition(" (")[0].partition(";")[0]
