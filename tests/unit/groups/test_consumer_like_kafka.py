"""What Apache Kafka 4.3.0 answered in a long conversation, we answer too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.groups.dialogue import Side, dialogue
from tests.unit.groups.shard import PENDING, Shard

ANSWERS = Path(__file__).parent / "kafka" / "answers-4.3.0.json"


def test_a_conversation_with_kafka_goes_the_same_way_with_us(
    make_shard: Callable[..., Shard],
) -> None:
    shard = make_shard(consumer_assignment_interval_ms=0, initial_rebalance_delay_ms=0)
    ids = {name: shard.topics.create(name, count).id for name, count in (("t", 4), ("u", 2))}

    def ask(request: Any, version: int) -> Any:
        token = shard.send(request, version)
        if shard.answer(token) is PENDING:
            shard.pass_time(1)
        return shard.answer(token)

    recorded = json.loads(ANSWERS.read_text())
    ours = [json.loads(json.dumps(step)) for step in dialogue(Side(ask, ids))]
    assert len(ours) == len(recorded) > 100
    for place, (said, expected) in enumerate(zip(ours, recorded, strict=True)):
        assert said == expected, f"step {place}"
