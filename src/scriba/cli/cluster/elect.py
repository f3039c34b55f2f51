"""`scriba cluster elect`: partitions get the leaders they should have."""

import argparse
import asyncio
import time
from typing import Any, Final

from scriba.cli.output import counted, print_json, print_names, warn
from scriba.cli.parsing.partitions import partitions_named
from scriba.cli.problems import FAILED, Misuse
from scriba.cli.session import with_admin
from scriba.client import (
    Admin,
    BrokerError,
    ElectionType,
    ErrorCode,
    PartlyFailed,
    TopicPartition,
)

PAUSE_S: Final = 0.2


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    if options.unclean and not options.partitions:
        raise Misuse("--unclean may lose records of every partition that it is for", "name them")
    named = None
    if options.partitions:
        named = await partitions_named(admin, options.partitions)
    kind = ElectionType.UNCLEAN if options.unclean else ElectionType.PREFERRED
    losses: dict[TopicPartition, str] = {}
    results, errors = await _elect(admin, named, kind, losses)
    until = time.monotonic() + options.timeout
    while options.wait and _may_return(errors) and time.monotonic() < until:
        await asyncio.sleep(PAUSE_S)
        more, still = await _elect(admin, list(errors), kind, losses)
        results, errors = results | more, still
    leaders = await _leaders(admin, [where for where, elected in results.items() if elected])
    if options.json:
        print_json(_document(results, errors, leaders, losses))
    else:
        _tell(results, errors, leaders, losses)
    return FAILED if errors else 0


async def _elect(
    admin: Admin,
    partitions: list[TopicPartition] | None,
    kind: ElectionType,
    losses: dict[TopicPartition, str],
) -> tuple[dict[TopicPartition, bool], dict[TopicPartition, BrokerError]]:
    """Where there was an election or no need for one, and where there could be none. `losses` gets
    what the controller says of those that may have lost records."""
    try:
        elected = await admin.elect_leaders(partitions, type=kind, on_loss=losses.__setitem__)
        return elected, {}
    except PartlyFailed as failed:
        return dict(failed.results), dict(failed.errors)
    except BrokerError as refused:
        if partitions is None or len(partitions) != 1:
            raise
        return {}, {partitions[0]: refused}


def _may_return(errors: dict[TopicPartition, BrokerError]) -> bool:
    return any(e.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE for e in errors.values())


async def _leaders(
    admin: Admin, partitions: list[TopicPartition]
) -> dict[TopicPartition, int | None]:
    if not partitions:
        return {}
    topics = await admin.describe_topics({where.topic for where in partitions})
    return {where: topics[where.topic].partitions[where.partition].leader for where in partitions}


def _document(
    results: dict[TopicPartition, bool],
    errors: dict[TopicPartition, BrokerError],
    leaders: dict[TopicPartition, int | None],
    losses: dict[TopicPartition, str],
) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "elected": elected,
            "leader": leaders.get(where),
            "loss": losses.get(where),
            "error": None,
        }
        for where, elected in results.items()
    ]
    told += (
        {
            "topic": where.topic,
            "partition": where.partition,
            "elected": False,
            "leader": None,
            "loss": None,
            "error": error.code.name,
        }
        for where, error in errors.items()
    )
    return told


def _tell(
    results: dict[TopicPartition, bool],
    errors: dict[TopicPartition, BrokerError],
    leaders: dict[TopicPartition, int | None],
    losses: dict[TopicPartition, str],
) -> None:
    print_names(
        [
            f"{where}: {losses.get(where, f'node {leaders[where]} leads now')}"
            for where, done in results.items()
            if done
        ],
        as_json=False,
    )
    for error in errors.values():
        warn(str(error))
    if not errors and not any(results.values()):
        print(
            f"{counted(len(results), 'partition')} looked at: every leader is the right one"
            if results
            else "every leader is the right one"
        )
