"""Operators hear of partitions that nobody leads, and of leaders that may lack records."""

from typing import Any

from scriba.broker.metadata.elections import OfflineWatch, tell_changes
from scriba.broker.observe.counters import Counters
from scriba.controller.image import (
    RECOVERING,
    ClusterImage,
    Delta,
    PartitionImage,
    TopicImage,
)
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.wire.messages.stored import AccessControlEntryRecord


class Machine:
    def __init__(self) -> None:
        self.offline_count = 0

    def offline(self, limit: int) -> list[str]:
        return [f"t-{index}" for index in range(min(limit, self.offline_count))]


def test_partitions_that_are_led_again_at_once_are_not_worth_a_word() -> None:
    notes: list[tuple[EventKind, str]] = []
    watch = OfflineWatch(lambda kind, about, text, *_: notes.append((kind, text)))
    machine: Any = Machine()

    def look(at_ms: int, count: int) -> None:
        machine.offline_count = count
        watch.look(machine, Instant(at_ms, at_ms))

    for at_ms, count in ((0, 5), (1500, 5), (1600, 0), (2500, 5), (4400, 5)):
        look(at_ms, count)
    assert not notes
    look(4500, 12)
    text = "12 without a leader: t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9 and 2 more"
    assert notes == [(EventKind.PARTITIONS_LEADERLESS, text)]
    look(9000, 12)
    watch.look(None, Instant(9500, 9500))
    look(9600, 0)
    assert len(notes) == 1, "another controller took over in between"
    for at_ms in (10_000, 12_000, 12_500):
        look(at_ms, 1)
    look(13_000, 0)
    kinds = [kind for kind, _ in notes]
    assert kinds[1:] == [EventKind.PARTITIONS_LEADERLESS, EventKind.PARTITIONS_LED]


def test_an_outage_is_told_while_an_older_one_lasts() -> None:
    notes: list[tuple[EventKind, str]] = []
    watch = OfflineWatch(lambda kind, about, text, *_: notes.append((kind, text.split(":")[0])))
    machine: Any = Machine()

    def look(at_ms: int, count: int) -> None:
        machine.offline_count = count
        watch.look(machine, Instant(at_ms, at_ms))

    def told(count: int) -> tuple[EventKind, str]:
        return EventKind.PARTITIONS_LEADERLESS, f"{count} without a leader"

    for at_ms in (0, 2000):
        look(at_ms, 1)
    assert notes == [told(1)]
    for at_ms, count in ((5000, 4), (6000, 1), (6500, 4), (8400, 4)):
        look(at_ms, count)
    assert notes == [told(1)], "three of them were led again at once"
    look(8500, 5)
    assert notes == [told(1), told(5)]
    look(20_000, 5)
    # Some come back, and as many go later.
    for at_ms, count in ((21_000, 3), (30_000, 3), (31_000, 5), (33_000, 5)):
        look(at_ms, count)
    assert notes == [told(1), told(5), told(5)]
    look(34_000, 0)
    assert notes[3:] == [(EventKind.PARTITIONS_LED, "every partition has a leader")]


class Host:
    id = 1

    def __init__(self) -> None:
        self.counters = Counters()
        self.notes: list[tuple[EventKind, str]] = []

    def note(self, kind: EventKind, about: str, text: str, *_: Any) -> None:
        self.notes.append((kind, text))


def test_only_the_broker_that_was_elected_tells_of_it_and_once() -> None:
    image, delta, host = ClusterImage(), Delta(), Host()
    before = PartitionImage((1, 2), (bytes(16),) * 2, (), -1, 4, 7)
    after = before._replace(
        leader=1, isr=(1,), leader_epoch=5, partition_epoch=8, leader_recovery_state=RECOVERING
    )
    topic = TopicImage("t", b"t" * 16, {0: after, 1: after._replace(leader=2, isr=(2,))})
    image.topics_by_id[topic.id] = topic
    delta.partitions = {topic.id: {0: before, 1: before}}
    tell_changes(host, delta, image)
    assert host.notes == [(EventKind.UNCLEAN_ELECTION, "leads 1: t-0")]
    delta.partitions = {topic.id: {0: after._replace(partition_epoch=7)}}
    tell_changes(host, delta, image)
    assert len(host.notes) == host.counters.unclean_elections == 1


def test_rules_that_another_controller_wrote_are_told_of() -> None:
    image, delta, host = ClusterImage(), Delta(), Host()
    image.replay([AccessControlEntryRecord(id=b"a" * 16)], 0, 1, delta)
    tell_changes(host, delta, image)
    assert host.notes == [(EventKind.RULES_NOT_ENFORCED, "the cluster has 1 ACL")]
