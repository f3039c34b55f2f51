"""`scriba node`: what can happen to a node, done to one of those that `scriba up --nodes` runs."""

import argparse

from scriba.cli.node.control import order
from scriba.cli.node.supervisor import lines
from scriba.cli.output import print_json


def carry_out(options: argparse.Namespace) -> int:
    node = order(options.data, options.order, options.id)["node"]
    if options.json:
        print_json(node)
    else:
        print("\n".join(lines([node])))
    return 0


def list_all(options: argparse.Namespace) -> int:
    nodes = order(options.data, "list", 0)["nodes"]
    if options.json:
        print_json(nodes)
    else:
        print("\n".join(lines(nodes)))
    return 0
