"""`scriba completion`: the script for a shell."""

import argparse
import importlib

from scriba.cli.completing.table import places
from scriba.cli.parsing.arguments import parser


def run(options: argparse.Namespace) -> int:
    shell = importlib.import_module(f"scriba.cli.completing.{options.shell}")
    print(shell.script(places(parser())), end="")
    return 0
