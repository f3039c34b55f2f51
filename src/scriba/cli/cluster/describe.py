"""`scriba cluster describe`: brokers with what they hold, the metadata quorum, features."""

import argparse
import asyncio
from typing import Any, Final

from scriba.cli.output import print_json, print_lines, size, table
from scriba.cli.session import timeout_ms, with_admin
from scriba.client import Admin, BrokerError, LogDir, NetworkError, TimedOut
from scriba.client.admin.model import QuorumDescription
from scriba.errors import ErrorCode

_NO_LEADER: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
PATIENCE_MS: Final = 3_000
"""How long one broker is waited for, which may be a process that stands still."""


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    document = await gathered(admin, options)
    if options.json:
        print_json(document)
    else:
        print_lines("\n".join(page(document)))
    return 0


async def gathered(admin: Admin, options: argparse.Namespace) -> dict[str, Any]:
    cluster = await admin.describe_cluster(include_fenced=True)
    living = [node.id for node in cluster.nodes if node.id not in cluster.fenced]
    directories = await _directories(admin, living, timeout_ms(options))
    features = await admin.describe_features()
    # Last: a broker that looks for the leader answers nothing else on this connection meanwhile.
    quorum = await _quorum(admin)
    return {
        "id": cluster.id,
        "controller": None if quorum is None else quorum.leader,
        "brokers": [
            {
                "id": node.id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "fenced": node.id in cluster.fenced,
                "answers": node.id in directories,
                "log_dirs": [
                    {
                        "path": directory.path,
                        "replicas": len(directory.replicas),
                        "bytes": sum(replica.size for replica in directory.replicas.values()),
                        "usable_bytes": directory.usable_bytes,
                    }
                    for directory in directories.get(node.id, [])
                ],
            }
            for node in cluster.nodes
        ],
        "quorum": None
        if quorum is None
        else {
            "leader": quorum.leader,
            "leader_epoch": quorum.leader_epoch,
            "high_watermark": quorum.high_watermark,
            "voters": [
                {"id": voter.id, "end_offset": voter.log_end_offset} for voter in quorum.voters
            ],
            "observers": [
                {"id": each.id, "end_offset": each.log_end_offset} for each in quorum.observers
            ],
        },
        "features": {
            feature.name: feature.finalized
            for feature in features.values()
            if feature.finalized is not None
        },
    }


async def _quorum(admin: Admin) -> QuorumDescription | None:
    """None where nobody answers for it: its majority may be what is missing, and who looks wants to
    see the rest all the more."""
    try:
        return await admin.describe_quorum(timeout_ms=PATIENCE_MS)
    except (TimedOut, NetworkError):
        return None
    except BrokerError as refused:
        if refused.code not in _NO_LEADER:
            raise
        return None


async def _directories(admin: Admin, brokers: list[int], limit_ms: int) -> dict[int, list[LogDir]]:
    """By broker what it holds; one that does not answer, as a stopped process, is left out."""

    async def ask(broker: int) -> list[LogDir] | None:
        try:
            found = await admin.describe_log_dirs([broker], timeout_ms=min(limit_ms, PATIENCE_MS))
        except (TimedOut, NetworkError):
            return None
        return found[broker]

    answers = await asyncio.gather(*map(ask, brokers))
    return {
        broker: found for broker, found in zip(brokers, answers, strict=True) if found is not None
    }


def page(document: dict[str, Any]) -> list[str]:
    features = ", ".join(f"{name} {level}" for name, level in document["features"].items())
    controller = document["controller"]
    return [
        f"cluster {document['id']}, controller {'unknown' if controller is None else controller}",
        "",
        *table(["BROKER", "ADDRESS", "RACK", "STATE", "REPLICAS", "DATA", "FREE"], _rows(document)),
        "",
        *_quorum_lines(document["quorum"]),
        f"features: {features or 'none'}",
    ]


def _quorum_lines(quorum: dict[str, Any] | None) -> list[str]:
    if quorum is None:
        return ["quorum: no leader answers; start controllers until a majority of them is up"]
    lines = [
        f"quorum: leader {quorum['leader']}, epoch {quorum['leader_epoch']}, "
        f"high watermark {quorum['high_watermark']}",
        f"  voters: {_members(quorum['voters'], quorum['high_watermark'])}",
    ]
    if quorum["observers"]:
        lines.append(f"  observers: {_members(quorum['observers'], quorum['high_watermark'])}")
    return lines


def _rows(document: dict[str, Any]) -> list[tuple[str | int | None, ...]]:
    rows: list[tuple[str | int | None, ...]] = []
    for broker in document["brokers"]:
        directories = broker["log_dirs"]
        free = [d["usable_bytes"] for d in directories if d["usable_bytes"] is not None]
        rows.append(
            (
                broker["id"],
                f"{broker['host']}:{broker['port']}",
                broker["rack"],
                _state(broker),
                sum(d["replicas"] for d in directories) if directories else None,
                size(sum(d["bytes"] for d in directories)) if directories else None,
                size(sum(free)) if free else None,
            )
        )
    return rows


def _state(broker: dict[str, Any]) -> str:
    if broker["fenced"]:
        return "fenced"
    return "up" if broker["answers"] else "no answer"


def _members(members: list[dict[str, int]], high_watermark: int) -> str:
    """Each with how far behind it is."""
    told = []
    for member in members:
        behind = high_watermark - member["end_offset"]
        told.append(f"{member['id']} ({behind} behind)" if behind > 0 else str(member["id"]))
    return ", ".join(told)
