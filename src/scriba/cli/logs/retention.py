"""`scriba log retention`: whether nodes delete by age, and the word that lets them go on.

A node that does not believe its clock says so with a setting of its own, in the metadata of the
cluster. It is read and deleted here as any setting is, so Kafka's `kafka-configs` can do the same.
"""

import argparse
from datetime import UTC, datetime
from typing import Final

from scriba.cli.output import print_json
from scriba.cli.problems import CommandError
from scriba.cli.session import with_admin
from scriba.client import Admin, ConfigResource

PAUSED_AT: Final = "scriba.retention.paused.at.ms"
HELD_BACK: Final = (
    "records by retention.ms, tombstones, committed offsets, idle producers, transactional ids"
)


@with_admin
async def status(admin: Admin, options: argparse.Namespace) -> int:
    nodes = await _nodes(admin, options.node)
    if options.json:
        print_json([{"node": node, "paused_at_ms": at_ms} for node, at_ms in nodes.items()])
        return 0
    for node, at_ms in nodes.items():
        if at_ms is None:
            print(f"node {node}: deletes by age")
            continue
        print(f"node {node}: PAUSED, nothing is deleted for its age")
        print(f"  why:    its clock is more than a day ahead of {_date(at_ms)}, the newest time")
        print("          that it had written down: it was off that long, or its clock is wrong")
        print(f"  kept:   {HELD_BACK}")
        print("  ends:   after a day of running, or once the clock is back")
        print(
            f"  resume: if `date` is right on that machine, scriba log retention resume{_to(node)}"
        )
    return 0


@with_admin
async def resume(admin: Admin, options: argparse.Namespace) -> int:
    nodes = await _nodes(admin, options.node)
    paused = [node for node, at_ms in nodes.items() if at_ms is not None]
    for node in paused:
        await admin.alter_configs({ConfigResource.broker(node): {PAUSED_AT: None}})
    if options.json:
        print_json([{"node": node, "resumed": node in paused} for node in nodes])
        return 0
    for node in nodes:
        what = "deletes by age again" if node in paused else "was not paused"
        print(f"node {node}: {what}")
    return 0


async def _nodes(admin: Admin, wanted: int | None) -> dict[int, int | None]:
    """The nodes in question; for one that has paused, the newest time it believes in."""
    there = sorted(node.id for node in (await admin.describe_cluster()).nodes)
    if wanted is not None and wanted not in there:
        known = ", ".join(map(str, there))
        raise CommandError(f"there is no node {wanted}; the cluster has {known}")
    found: dict[int, int | None] = {}
    for node in there if wanted is None else [wanted]:
        resource = ConfigResource.broker(node)
        entry = (await admin.describe_configs([resource]))[resource].get(PAUSED_AT)
        if entry is None:
            raise CommandError(f"node {node} is not Scriba's: it does not tell of its clock")
        found[node] = None if entry.value in (None, "-1") else int(entry.value or "")
    return found


def _to(node: int) -> str:
    return f" --node {node}"


def _date(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
