"""Long work in its shortest slices, so that others come between any two of its steps.

In a simulated world time stands still while code runs, and a cluster of it has few partitions,
groups and records. Played as it is, no slice of a long work would ever end early, and hardly any
work would be long: what goes wrong between two slices would never be seen. Here each slice is one
step, and everything of more than one element is long.

What divides work are constants of the modules that do it. They are changed while a play runs, and
only in the process that plays.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Final

from scriba.broker.net.large_requests import LIMITS

SHORTEST: Final = {
    "runtime.loop.pace": {"SLICE_MS": 0, "BETWEEN_LOOKS": 1},
    "broker.api.dispatch": {"BETWEEN_LOOKS": 1, "TOLD_AT_ONCE": 1},
    "broker.coordinators.cluster_topics": {"SLICE_VISITS": 1, "SLICE_TOPICS": 1},
    "broker.coordinators.markers": {"AT_ONCE": 1, "REMOTE_AT_ONCE": 1},
    "broker.coordinators.runtime": {"AT_ONCE": 1, "ANSWERS_AT_ONCE": 1, "TICKS_AT_ONCE": 1},
    "broker.coordinators.shard_log": {"BETWEEN_LOOKS": 1},
    "broker.coordinators.slices": {"BETWEEN_LOOKS": 1, "ANSWERS_AT_ONCE": 1},
    "broker.coordinators.verification": {"ASKED_AT_ONCE": 1, "NAMED_AT_ONCE": 1},
    "broker.fastpath.replicas": {"AT_ONCE": 1},
    "broker.handlers.admin.cluster": {"AT_ONCE": 1},
    "broker.handlers.admin.configs": {"AT_ONCE": 1},
    "broker.handlers.groups.producers": {"AT_ONCE": 1},
    "broker.handlers.groups.txn": {"AT_ONCE": 1},
    "broker.handlers.records.fetch": {"AT_ONCE": 1},
    "broker.handlers.records.replica_fetch": {"AT_ONCE": 1},
    "broker.metadata.active": {"SLICE_MS": 0, "SLICE": 1},
    "broker.metadata.follower": {"SLICE": 1, "TOLD_AT_ONCE": 1},
    "broker.metadata.quorum.batches": {"DECODED_AT_ONCE": 1},
    "broker.metadata.quorum.snapshots": {"RECORDS_PER_LOOK": 1},
    "broker.partitions.directories.assignments": {"MOST_AT_ONCE": 1},
    "broker.partitions.replicas": {
        "LOGS_AT_ONCE": 1,
        "BEGUN_AT_ONCE": 1,
        "PARTITIONS_AT_ONCE": 1,
    },
    "broker.partitions.replication.fetchers": {"AT_ONCE": 0},
    "broker.partitions.replication.handover": {"AT_ONCE": 1},
    "broker.partitions.replication.isr_updates": {"MOST_AT_ONCE": 1},
    "controller.difference": {"SLICE": 1},
    "controller.partitions.elections": {"AT_ONCE": 1, "CHECKED_AT_ONCE": 1},
    "groups.assignors.ranges": {"AT_ONCE": 1},
    "groups.assignors.uniform": {"AT_ONCE": 1},
    "groups.classic.group": {"AT_ONCE": 1},
    "groups.classic.members": {"AT_ONCE": 1},
    "groups.classic.rebalance": {"AT_ONCE": 1},
    "groups.consumer.describe": {"AT_ONCE": 0},
    "groups.consumer.progress": {"AT_ONCE": 1},
    "groups.consumer.topic_hash": {"AT_ONCE": 1},
    "groups.listing": {"AT_ONCE": 1},
    "groups.offsets.commit": {"AT_ONCE": 1},
    "groups.offsets.fetch": {"AT_ONCE": 1},
    "groups.store": {"OFFSETS_AT_ONCE": 1},
    "storage.directory.checkpoints": {"LINES_AT_ONCE": 1},
    "storage.directory.logdir": {"LOOKED_AT_ONCE": 1},
    "storage.producers.snapshots": {"AT_ONCE": 0, "SLICE": 1},
    "storage.producers.state": {"COUNTED_AT_ONCE": 1},
    "txn.machine": {"ABORTED_AT_ONCE": 1, "LOOKED_AT_AT_ONCE": 1},
}
"""By module, what it divides its work by."""


@contextmanager
def short_slices() -> Iterator[None]:
    before: list[tuple[ModuleType, str, object]] = []
    limits = dict(LIMITS)
    try:
        for name, constants in SHORTEST.items():
            module = import_module(f"scriba.{name}")
            for constant, least in constants.items():
                before.append((module, constant, getattr(module, constant)))
                setattr(module, constant, least)
        LIMITS.update({key: replace(each, at_once=1, part=1) for key, each in limits.items()})
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)
        LIMITS.update(limits)
