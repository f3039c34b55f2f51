"""`scriba cluster voters`: who votes in the metadata quorum is changed, one at a time."""

import argparse
from typing import Any

from scriba.cli.output import print_json
from scriba.cli.problems import CommandError
from scriba.cli.session import timeout_ms, with_admin
from scriba.client import Admin, Endpoint, QuorumDescription, QuorumReplica


@with_admin
async def add(admin: Admin, options: argparse.Namespace) -> int:
    quorum = await admin.describe_quorum()
    host, port = options.address
    if is_voter(quorum, options.id, options.directory, host, port):
        return await _tell(admin, options, f"node {options.id} is a voter")
    found = observer(quorum, options.id, options.directory)
    named = {end.name for ends in quorum.endpoints.values() for end in ends[:1]}
    endpoint = Endpoint(min(named, default="CONTROLLER"), host, port)
    await admin.add_raft_voter(options.id, found, [endpoint], timeout_ms=timeout_ms(options))
    return await _tell(admin, options, f"node {options.id} is a voter")


@with_admin
async def remove(admin: Admin, options: argparse.Namespace) -> int:
    quorum = await admin.describe_quorum()
    found = voter(quorum, options.id, options.directory)
    await admin.remove_raft_voter(options.id, found, timeout_ms=timeout_ms(options))
    return await _tell(admin, options, f"node {options.id} is no voter any more")


def is_voter(
    quorum: QuorumDescription, node_id: int, directory: str | None, host: str, port: int
) -> bool:
    """Whether it is what was asked for already: of an earlier attempt the answer may be lost."""
    known = [each.directory_id for each in quorum.voters if each.id == node_id]
    there = any((end.host, end.port) == (host, port) for end in quorum.endpoints.get(node_id, ()))
    return bool(known) and there and directory in (None, *known)


def observer(quorum: QuorumDescription, node_id: int, directory: str | None) -> str:
    """The directory of a node that follows the metadata; CommandError where that is not clear."""
    return _directory(
        quorum.observers,
        node_id,
        directory,
        f"node {node_id} does not follow the metadata",
        "start it as a controller first, with the voters in controller.quorum.bootstrap.servers",
    )


def voter(quorum: QuorumDescription, node_id: int, directory: str | None) -> str:
    names = ", ".join(str(each.id) for each in quorum.voters)
    return _directory(
        quorum.voters, node_id, directory, f"node {node_id} is no voter", f"the voters are {names}"
    )


def _directory(
    members: tuple[QuorumReplica, ...], node_id: int, directory: str | None, cause: str, fix: str
) -> str:
    known = [each.directory_id for each in members if each.id == node_id]
    if directory is not None:
        return directory
    if not known:
        raise CommandError(cause, fix)
    if len(known) > 1:
        raise CommandError(
            f"node {node_id} was seen with the directories {', '.join(known)}",
            "name the one that it has with --directory",
        )
    return known[0]


async def _tell(admin: Admin, options: argparse.Namespace, what: str) -> int:
    quorum = await admin.describe_quorum()
    voters = sorted(each.id for each in quorum.voters)
    document: dict[str, Any] = {"voters": voters, "leader": quorum.leader}
    if options.json:
        print_json(document)
    else:
        print(f"{what}; the voters are {', '.join(map(str, voters))}")
    return 0
