"""`scriba cluster quorum`: the voters and observers of the metadata log, and how far each is."""

import argparse
import time
from collections.abc import Iterable
from typing import Any, Final

from scriba.cli.output import Cell, print_json, print_lines, table
from scriba.cli.problems import CommandError
from scriba.cli.session import timeout_ms, with_admin
from scriba.client import Admin, BrokerError, NetworkError, TimedOut
from scriba.client.admin.model import QuorumDescription, QuorumReplica

PATIENCE_MS: Final = 3_000
"""A broker says after two seconds that it finds nobody; an election is over by then."""


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    if options.broker is not None:
        cluster = await admin.describe_cluster(include_fenced=True)
        known = sorted(node.id for node in cluster.nodes)
        if options.broker not in known:
            there = ", ".join(map(str, known))
            raise CommandError(f"there is no broker {options.broker}", f"there are {there}")
    quorum = await described(admin, options)
    now_ms = time.time_ns() // 1_000_000
    found = document(quorum)
    if options.json:
        print_json(found)
    else:
        print_lines("\n".join(page(found, now_ms)))
    return 0


async def described(admin: Admin, options: argparse.Namespace) -> QuorumDescription:
    """CommandError where brokers answer, and none of them finds an active controller."""
    limit_ms = min(PATIENCE_MS, timeout_ms(options))
    try:
        return await admin.describe_quorum(broker=options.broker, timeout_ms=limit_ms)
    except TimedOut as late:
        if isinstance(late.cause, NetworkError):
            raise
        cause, fix = "no active controller answers", "start controllers until a majority runs"
        told = str(late.cause) if isinstance(late.cause, BrokerError) else ""
        if (at := told.find("no active controller has answered")) >= 0:
            cause, _, fix = told[at:].partition("; ")
        raise CommandError(cause, fix) from late


def document(quorum: QuorumDescription) -> dict[str, Any]:
    return {
        "leader": quorum.leader if quorum.leader >= 0 else None,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": _members(quorum, quorum.voters),
        "observers": _members(quorum, quorum.observers),
    }


def _members(quorum: QuorumDescription, members: Iterable[QuorumReplica]) -> list[dict[str, Any]]:
    """With how many records each lacks of what the leader has."""
    everyone = (*quorum.voters, *quorum.observers)
    end = max((each.log_end_offset for each in everyone), default=0)
    leading = [each.log_end_offset for each in everyone if each.id == quorum.leader]
    return [
        {
            "id": each.id,
            "directory_id": each.directory_id,
            "end_offset": each.log_end_offset,
            "lag": max(0, (leading[0] if leading else end) - each.log_end_offset),
            "last_fetch_ms": each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
            "last_caught_up_ms": each.last_caught_up_timestamp
            if each.last_caught_up_timestamp >= 0
            else None,
        }
        for each in members
    ]


def page(found: dict[str, Any], now_ms: int) -> list[str]:
    leader = "nobody" if found["leader"] is None else f"node {found['leader']}"
    headings = ["NODE", "ROLE", "END OFFSET", "LAG", "LAST FETCH", "CAUGHT UP", "DIRECTORY"]
    rows = [
        _row(each, "leader" if each["id"] == found["leader"] else role, now_ms)
        for role, members in (("voter", found["voters"]), ("observer", found["observers"]))
        for each in members
    ]
    return [
        f"{leader} leads in epoch {found['leader_epoch']}, high watermark "
        f"{found['high_watermark']}",
        "",
        *table(headings, rows),
    ]


def _row(member: dict[str, Any], role: str, now_ms: int) -> tuple[Cell, ...]:
    leads = role == "leader"
    return (
        member["id"],
        role,
        member["end_offset"],
        member["lag"],
        None if leads else _ago(member["last_fetch_ms"], now_ms),
        None if leads else _ago(member["last_caught_up_ms"], now_ms),
        member["directory_id"],
    )


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else f"{max(0, now_ms - then_ms) / 1000:.1f} s ago"
