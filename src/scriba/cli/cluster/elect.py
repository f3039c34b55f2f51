"""`scriba cluster elect`: partitions get the leaders they should have."""

import argparse
from typing import Any

from scriba.cli.output import counted, print_json, print_names, warn
from scriba.cli.parsing.partitions import partitions_named
from scriba.cli.problems import FAILED, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, BrokerError, ElectionType, PartlyFailed, TopicPartition


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    if options.unclean and not options.partitions:
        raise Misuse("--unclean may lose records of every partition that it is for", "name them")
    named = None
    if options.partitions:
        named = await partitions_named(admin, options.partitions)
    kind = ElectionType.UNCLEAN if options.unclean else ElectionType.PREFERRED
    results: dict[TopicPartition, bool] = {}
    errors: dict[TopicPartition, BrokerError] = {}
    try:
        results = await admin.elect_leaders(named, type=kind)
    except PartlyFailed as failed:
        results, errors = dict(failed.results), dict(failed.errors)
    leaders = await _leaders(admin, [where for where, elected in results.items() if elected])
    if options.json:
        print_json(_document(results, errors, leaders))
    else:
        _tell(results, errors, leaders)
    return FAILED if errors else 0


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
) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "elected": elected,
            "leader": leaders.get(where),
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
            "error": error.code.name,
        }
        for where, error in errors.items()
    )
    return told


def _tell(
    results: dict[TopicPartition, bool],
    errors: dict[TopicPartition, BrokerError],
    leaders: dict[TopicPartition, int | None],
) -> None:
    print_names(
        [f"{where}: node {leaders[where]} leads now" for where, done in results.items() if done],
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
