"""`scriba node`: what can happen to nodes, done to some of those that `scriba up --nodes` runs."""

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scriba.cli.node.control import order
from scriba.cli.node.supervisor import lines
from scriba.cli.output import print_json


def carry_out(options: argparse.Namespace) -> int:
    """Side by side: a controller that starts is up when a majority is."""

    def do(node_id: int) -> Any:
        return order(options.data, options.order, node_id)["node"]

    ids = list(dict.fromkeys(options.ids))
    with ThreadPoolExecutor(len(ids)) as threads:
        nodes = list(threads.map(do, ids))
    if options.json:
        print_json(nodes if len(nodes) > 1 else nodes[0])
    else:
        print("\n".join(lines(nodes)))
    return 0


def list_all(options: argparse.Namespace) -> int:
    nodes = order(options.data, "list", 0)["nodes"]
    if options.json:
        print_json(nodes)
    else:
        print("\n".join(lines(nodes)))
    return 0
