"""`scriba txn`: list, describe, abort."""

import argparse
import time
from typing import Any

from scriba.cli.groups.listing import listed
from scriba.cli.output import note, print_json, print_lines, print_table
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, TopicPartition
from scriba.client.admin.model import TransactionDescription

ONGOING = "Ongoing"


@with_admin
async def list_all(admin: Admin, options: argparse.Namespace) -> int:
    states = options.state or ([ONGOING] if options.longer_than is not None else [])
    found, code = await listed(
        admin.list_transactions(
            states=states, open_longer_ms=options.longer_than, pattern=options.like
        )
    )
    if options.json:
        print_json(
            [
                {"id": t.transactional_id, "state": t.state, "producer_id": t.producer_id}
                for t in found
            ]
        )
    elif found:
        rows = [(t.transactional_id, t.state, t.producer_id) for t in found]
        print_table(["TRANSACTIONAL ID", "STATE", "PRODUCER"], rows)
    else:
        note("there are no such transactions")
    return code


@with_admin
async def describe(admin: Admin, options: argparse.Namespace) -> int:
    found = await admin.describe_transactions(options.ids)
    documents = [_document(description) for description in found.values()]
    if options.json:
        print_json(documents)
    else:
        print_lines("\n\n".join(_page(document) for document in documents))
    return 0


def _document(found: TransactionDescription) -> dict[str, Any]:
    return {
        "id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "partitions": [str(where) for where in found.partitions],
    }


def _page(document: dict[str, Any]) -> str:
    lines = [
        f"{document['id']}  {document['state']}",
        f"  producer {document['producer_id']}, epoch {document['producer_epoch']}; coordinator "
        f"{document['coordinator']}; time-out {document['timeout_ms'] / 1000:g} s",
    ]
    if document["start_ms"] is not None and document["partitions"]:
        age = max(0, time.time() - document["start_ms"] / 1000)
        lines.append(f"  open for {age:.1f} s in {', '.join(document['partitions'])}")
    return "\n".join(lines)


@with_admin
async def abort(admin: Admin, options: argparse.Namespace) -> int:
    place = (options.topic, options.partition, options.start_offset)
    if options.id is not None:
        if any(part is not None for part in place):
            raise Misuse("give an id, or --topic, --partition and --start-offset; not both")
        return await _abort_by_id(admin, options.id, options.json)
    if any(part is None for part in place):
        raise Misuse("say which transaction", "give an id, or topic, partition and start offset")
    where = TopicPartition(options.topic, options.partition)
    return await _abort_in_partition(admin, where, options.start_offset, options.json)


async def _abort_by_id(admin: Admin, name: str, as_json: bool) -> int:
    before = (await admin.describe_transactions([name]))[name]
    if before.state != ONGOING:
        raise CommandError(f"{name} has no open transaction: it is {before.state}")
    await admin.fence_producers([name])
    if as_json:
        print_json({"id": name, "aborted": [str(where) for where in before.partitions]})
    else:
        print(f"aborted {name} in {', '.join(map(str, before.partitions))}; its producer is fenced")
    return 0


async def _abort_in_partition(
    admin: Admin, where: TopicPartition, start: int, as_json: bool
) -> int:
    producers = (await admin.describe_producers([where]))[where]
    found = next((p for p in producers if p.transaction_start_offset == start), None)
    if found is None:
        there = [p.transaction_start_offset for p in producers]
        offsets = ", ".join(str(offset) for offset in there if offset is not None)
        raise CommandError(
            f"{where} has no transaction that begins at {start}",
            f"those that are open begin at {offsets}" if offsets else "none is open there",
        )
    await admin.abort_transaction(
        where, found.producer_id, found.producer_epoch, found.coordinator_epoch
    )
    if as_json:
        print_json({"partition": str(where), "producer_id": found.producer_id, "aborted": True})
    else:
        print(f"aborted what producer {found.producer_id} had open in {where}")
    return 0
