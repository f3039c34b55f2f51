"""What another controller has written: rules that nobody here keeps, records that nobody knows."""

import asyncio
from typing import Any

import pytest

from scriba.broker.metadata.quorum.batches import BatchBuilder
from scriba.config import StartError
from scriba.controller.image import BROKER, TOPIC
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.wire.messages.stored import (
    AccessControlEntryRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RemoveAccessControlEntryRecord,
)
from tests.unit.broker.brokers import Brokers, play

ACL = AccessControlEntryRecord(id=b"a" * 16, resource_type=2, resource_name="t", principal="User:a")
GONE = RemoveAccessControlEntryRecord(id=ACL.id)
SETTINGS_LEFT_ASIDE = EventKind.SETTINGS_LEFT_ASIDE
UNKNOWN = 99
VALUE = bytes((1, UNKNOWN, 0, 0))
"""A record of a type that a later release may have."""


async def write(brokers: Brokers, record: Any) -> None:
    active = brokers.nodes[1].metadata.active
    assert active is not None
    await active.step(lambda machine, now: [record])


def test_brokers_serve_nobody_while_there_are_acls_that_they_cannot_keep() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", [2])
        assert await brokers.produce(2, "t", b"before") is ErrorCode.NONE
        node = brokers.nodes[2]
        await write(brokers, ACL)
        await brokers.until(lambda: not node.access.open)
        assert await brokers.produce(2, "t", b"no") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        told = await brokers.consume(2, "t")
        assert told.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await brokers.until(lambda: brokers.nodes[1].image.brokers[2].fenced)
        assert node.events.counts[EventKind.RULES_NOT_ENFORCED] == 1
        await write(brokers, GONE)
        await brokers.until(lambda: brokers.image("t").leader == 2)
        await brokers.until(lambda: brokers.leads(2, "t"))
        assert await brokers.produce(2, "t", b"after") is ErrorCode.NONE

    play(script, count=2)


def test_a_broker_does_not_start_in_a_cluster_with_acls() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", [1])
        brokers.kill(2)
        await write(brokers, ACL)
        with pytest.raises(StartError, match="the cluster has 1 ACL, which this release does not"):
            await brokers.boot(2)

    play(script, count=2)


def test_a_broker_that_lacks_a_feature_says_which() -> None:
    async def script(brokers: Brokers) -> None:
        brokers.kill(2)
        await write(brokers, FeatureLevelRecord(name="share.version", feature_level=1))
        with pytest.raises(StartError, match=r"runs share\.version at level 1, .*supports 0 to 0"):
            await brokers.boot(2)

    play(script, count=2)


def test_records_of_a_feature_that_is_not_known_end_no_node() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", [2])
        first, second = (brokers.nodes[at] for at in (1, 2))
        builder = BatchBuilder()
        builder.add(VALUE)
        first.metadata.quorum.append(builder, (), first.metadata.quorum.epoch)
        await brokers.until(lambda: second.image.unknown == {UNKNOWN})
        assert second.events.counts[EventKind.RECORDS_UNKNOWN] == 1
        assert await brokers.produce(2, "t", b"served") is ErrorCode.NONE
        follower = second.metadata.follower
        much_later = Instant(1 << 40, 1 << 40)
        follower.tick(much_later)
        await asyncio.sleep(1)
        assert not follower._snapshots, "which would not have them"

    play(script, count=2)


def test_settings_that_another_controller_let_pass_end_no_node() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", [2])
        node = brokers.nodes[2]
        for resource_type, name, key, value in (
            (BROKER, "", "num.io.threads", "9"),
            (BROKER, "2", "message.max.bytes", "many"),
            (BROKER, "2", "max.connections", "77"),
            (TOPIC, "t", "remote.storage.enable", "true"),
        ):
            record = ConfigRecord(
                resource_type=resource_type, resource_name=name, name=key, value=value
            )
            await write(brokers, record)
        await brokers.until(lambda: node.settings.max_connections == 77)
        assert node.settings.left_aside == ("message.max.bytes", "num.io.threads")
        told = {e.about: e.text for e in node.events.since() if e.kind is SETTINGS_LEFT_ASIDE}
        assert "message.max.bytes, num.io.threads" in told["broker 2"]
        await brokers.until(lambda: "remote.storage.enable" in node.image.config(TOPIC, "t"))
        assert any(event.about == "topic t" for event in node.events.since())
        assert await brokers.produce(2, "t", b"still") is ErrorCode.NONE

    play(script)
