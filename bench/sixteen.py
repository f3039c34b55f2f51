"""Sixteen nodes on one machine, as `scriba up --nodes 16` starts them, with nothing to do.

Sixteen of Kafka's need sixteen heaps of a gigabyte, so this row is Scriba's alone.
"""

import re
import time

from bench.cluster import IDLE_SECONDS, SETTLE_SECONDS
from bench.rows import Bench, Figures, Metric, Row
from bench.scale import WAIT_SECONDS, await_led, create
from tools.kafka.brokers import KafkaBroker, ScribaBroker, running
from tools.kafka.rawkafka import Connection

NODES, PARTITIONS, REPLICAS = 16, 2_000, 3


class Nodes(ScribaBroker):
    """One command, and all nodes as its children."""

    name = f"Scriba, {NODES} nodes"

    def command(self) -> list[str]:
        return [*super().command(), "--nodes", str(NODES)]

    def ready(self) -> bool:
        """Whether it has told that all of them are up."""
        return len(re.findall(rb"^ +node \d+ .* up$", self.output.read_bytes(), re.M)) == NODES


def sixteen(bench: Bench) -> Figures:
    if isinstance(bench.broker, KafkaBroker):
        return {}
    count = bench.amount(PARTITIONS)
    with bench.scratch() as folder, running(Nodes(folder)) as nodes:
        began = time.monotonic()
        with Connection(nodes.port, timeout=WAIT_SECONDS) as connection:
            create(connection, {"wide": count}, REPLICAS)
        await_led(nodes, count)
        figures = {"made": time.monotonic() - began}
        time.sleep(SETTLE_SECONDS)
        before = nodes.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        figures["idle"] = (nodes.cpu_seconds() - before) / IDLE_SECONDS * 100
        figures["memory"] = nodes.resident_bytes() / 1e6
    return figures


SIXTEEN = (
    Row(
        "sixteen",
        "sixteen nodes on one machine: 2,000 partitions and nobody who writes",
        (
            Metric("made", "s to make the topic"),
            Metric("idle", "% CPU of all"),
            Metric("memory", "MB of all"),
        ),
        sixteen,
        warms=False,
        once=True,
    ),
)
