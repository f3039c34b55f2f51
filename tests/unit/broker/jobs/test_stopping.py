"""A node that stops with many partitions lets the loop go on meanwhile."""

from collections.abc import Callable
from itertools import groupby

import pytest

from scriba.broker.node import Node
from scriba.broker.partitions import replicas
from scriba.broker.partitions.partition import Partition
from scriba.errors import KafkaError
from scriba.runtime.loop import pace
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest

PARTITIONS, AT_ONCE = 22, 4


def test_a_node_that_stops_ends_the_waits_of_a_few_partitions_in_a_turn(
    in_a_node: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    retire, next_turn = Partition.retire, pace.next_turn

    def retired(self: Partition, error: KafkaError) -> None:
        told.append("retired")
        retire(self, error)

    async def turn() -> None:
        told.append("turn")
        await next_turn()

    async def script(node: Node, world: ProcessWorld) -> None:
        new = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
        await node.controller.call(CreateTopicsRequest(topics=[new], timeout_ms=1000))
        monkeypatch.setattr(Partition, "retire", retired)
        monkeypatch.setattr(replicas, "next_turn", turn)
        monkeypatch.setattr(replicas, "PARTITIONS_AT_ONCE", AT_ONCE)

    in_a_node(script)
    # The checkpoint afterwards is made in turns, too.
    first, last = told.index("retired"), len(told) - told[::-1].index("retired")
    runs = [(kind, len(list(run))) for kind, run in groupby(told[first:last])]
    assert told.count("retired") >= PARTITIONS
    assert max(length for kind, length in runs if kind == "retired") == AT_ONCE
    assert {length for kind, length in runs if kind == "turn"} == {1}
