"""How the coordinators' topics are made, and when they are not made yet."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from scriba.broker.coordinators.internal_topics import internal_topic
from scriba.errors import ErrorCode, KafkaError
from scriba.settings import NodeSettings
from scriba.wire.messages.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC


@dataclass
class Image:
    brokers: dict[int, object]
    controllers: dict[int, object] = field(default_factory=dict)


class Facts:
    """What a broker knows of its cluster, started a second ago."""

    started_ms = 500

    def __init__(self, brokers: int, voters: int = 1, **given: str) -> None:
        properties = {key.replace("_", "."): value for key, value in given.items()}
        self.settings = NodeSettings.parse({"node.id": "1", **properties})
        self.image: Any = Image(dict.fromkeys(range(brokers)))
        self.voters = voters
        self.now = 1500
        self.world: Any = self
        self.clock = self

    def mono_ms(self) -> int:
        return self.now

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


def made(facts: Facts, name: str = OFFSETS_TOPIC) -> tuple[int, str | None]:
    topic = internal_topic(name, facts)
    configs = {config.name: config.value for config in topic.configs}
    return topic.replication_factor, configs.get("min.insync.replicas")


def test_single_broker_makes_them_at_once_with_one_replica() -> None:
    assert made(Facts(1)) == (1, None)
    assert made(Facts(1), TRANSACTIONS_TOPIC) == (1, "1")
    assert made(Facts(1, offsets_topic_replication_factor="3")) == (1, None)


def test_three_brokers_make_them_at_once_with_three_replicas() -> None:
    assert made(Facts(3, voters=3)) == (3, "2")
    assert made(Facts(5, voters=3), TRANSACTIONS_TOPIC) == (3, "2")
    assert made(Facts(5, voters=3, offsets_topic_replication_factor="5")) == (5, None)


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
@pytest.mark.parametrize("brokers", [1, 2])
def test_where_there_are_several_controllers_three_brokers_are_awaited(
    name: str, brokers: int
) -> None:
    facts = Facts(brokers, voters=3)
    with pytest.raises(KafkaError) as refused:
        made(facts, name)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    facts.now = facts.started_ms + 59_999
    with pytest.raises(KafkaError):
        made(facts, name)
    facts.now += 1
    assert made(facts, name)[0] == brokers
    facts = Facts(brokers, voters=3, initial_broker_registration_timeout_ms="1000")
    assert made(facts, name)[0] == brokers


def test_registered_controllers_count_where_the_voters_are_not_known() -> None:
    facts = Facts(1, voters=0)
    facts.image.controllers = {1: None, 2: None}
    with pytest.raises(KafkaError):
        made(facts)


def test_broker_alone_with_its_controller_elsewhere_does_not_wait() -> None:
    assert made(Facts(2)) == (2, None)


def test_fewer_replicas_that_were_chosen_need_no_waiting() -> None:
    assert made(Facts(1, voters=3, offsets_topic_replication_factor="1")) == (1, None)


def test_more_replicas_that_were_chosen_are_insisted_on() -> None:
    facts = Facts(2, voters=3, offsets_topic_replication_factor="3")
    facts.now += 60_000
    assert made(facts) == (3, None), "the controller refuses this, and says why"
