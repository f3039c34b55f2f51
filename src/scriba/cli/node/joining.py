"""`scriba up --join`: a new node in a directory of its own, for a cluster that exists.

The cluster is asked who is there: the node takes a number that is free, and is told where its
controllers are. As a controller it also asks to be a voter, once it has the metadata log.
"""

import argparse
import asyncio
import dataclasses
import os
from typing import Final, NamedTuple

from scriba.cli.node import kept as kept_file
from scriba.cli.node.arguments import DATA
from scriba.cli.node.kept import Kept
from scriba.cli.node.layout import BROKER, CONTROLLER, FIRST_PORT, MOST_NODES
from scriba.cli.problems import CommandError, Misuse
from scriba.config import StartError

ANSWER_MS: Final = 10_000


class Found(NamedTuple):
    """The cluster, as one of its brokers tells it."""

    cluster_id: str
    taken: frozenset[int]
    servers: tuple[str, ...]


def check_words(options: argparse.Namespace) -> None:
    """Misuse for words that do not go together."""
    if options.join is None:
        for name in ("controller", "id", "replicas"):
            if getattr(options, name):
                raise Misuse(f"--{name} is for a node that joins a cluster", "add --join HOST:PORT")
        return
    for name in ("nodes", "controllers"):
        if getattr(options, name) is not None:
            raise Misuse(f"--{name} starts a cluster, and --join adds one node to it", "drop one")
    if options.ephemeral:
        raise Misuse("--ephemeral: a node that joins keeps replicas of the others", "drop one")


def prepare(options: argparse.Namespace) -> Kept:
    """What the new node is told. It is kept in its directory later, when all settings are found to
    be right: a node that never began must not stand in the way of the next try."""
    known = None if options.data is None else kept_file.load(options.data)
    if known is not None and known.servers:
        if options.id not in (None, known.node_id):
            raise StartError(
                f"--id {options.id}: {options.data} is the data of node {known.node_id}; drop --id"
            )
        if options.controller and not known.is_controller:
            raise StartError(
                f"--controller: {options.data} is the data of node {known.node_id}, which is a "
                "broker alone; drop --controller, or name another --data for a controller"
            )
        return known
    if options.data is not None and kept_file.holds_a_node(options.data):
        raise StartError(
            f"{options.data} holds the data of a node already; start it without --join, or name "
            "another --data"
        )
    found = asyncio.run(look(options.join))
    node_id = free_id(found, options.id)
    options.data = options.data or f"{DATA}-{node_id}"
    if kept_file.holds_a_node(options.data) or kept_file.load(options.data) is not None:
        raise StartError(
            f"{options.data} holds the data of a node already; start it with --data "
            f"{options.data} and without --join, or name another"
        )
    port = options.port if options.port is not None else next(kept_file.free_ports(FIRST_PORT))
    roles = (BROKER, CONTROLLER) if options.controller else (BROKER,)
    return Kept(node_id, roles, port, None, found.servers)


def free_id(found: Found, wanted: int | None) -> int:
    if wanted is not None:
        if wanted in found.taken:
            raise StartError(
                f"--id {wanted}: the cluster has a node {wanted}; choose another, or drop --id"
            )
        return wanted
    return next(
        number
        for number in range(1, MOST_NODES + len(found.taken) + 2)
        if number not in found.taken
    )


async def look(address: str) -> Found:
    """Asks a broker for its cluster; StartError where nothing can join it."""
    from scriba.client import Admin, ClientError

    try:
        async with Admin(bootstrap_servers=address, default_api_timeout_ms=ANSWER_MS) as admin:
            cluster = await admin.describe_cluster(include_fenced=True)
            quorum = await admin.describe_quorum()
    except ClientError as error:
        raise CommandError(
            f"--join {address}: {error}", "name a broker of the cluster that answers"
        ) from error
    servers = []
    for voter in quorum.voters:
        ends = quorum.endpoints.get(voter.id, ())
        if not ends or not ends[0].port:
            raise StartError(
                f"--join {address}: controller {voter.id} has no listener that other nodes could "
                "reach; start it again with this release, or add CONTROLLER://host:port to its "
                "listeners"
            )
        servers.append(f"{ends[0].host}:{ends[0].port}")
    members = [*quorum.voters, *quorum.observers]
    taken = {node.id for node in cluster.nodes} | {member.id for member in members}
    return Found(cluster.id, frozenset(taken), tuple(servers))


def keep(known: Kept, directory: str, port: int | None, controller_port: int | None) -> None:
    """Writes down the ports that a node came up with, and that it is the voter it was to be."""
    now = dataclasses.replace(
        known,
        port=port if known.servers else known.port,
        controller_port=controller_port,
        voter=known.voter or (bool(known.servers) and known.is_controller),
    )
    if now != known or not os.path.exists(os.path.join(directory, kept_file.KEPT_FILE)):
        kept_file.save(directory, now)
