"""Every option of every command says what it does, in words that stand by themselves."""

import argparse
import re

from scriba.cli.parsing.arguments import parser
from scriba.cli.parsing.commands import below

FRAGMENT = re.compile(r"\(|(of|for|to|by|after|as|such) |the default$|all (to|when) |in total$")
"""How a text begins that needs a name before it, or is nothing but its default."""


def test_every_option_says_what_it_does() -> None:
    told = [
        (" ".join(path), action.option_strings or action.metavar, action.help)
        for path, each in below(parser())
        for action in each._actions
        if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
    ]
    assert len(told) > 300
    unclear = [each for each in told if (each[2] is None or FRAGMENT.match(each[2]))]
    # A TOPIC that a command creates, alters or deletes needs no more words than its own.
    assert [each for each in unclear if each[2] is not None or isinstance(each[1], list)] == []
