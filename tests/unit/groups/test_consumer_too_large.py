"""Changes of a consumer group that the log can never take: it stays as it was, and goes on."""

from typing import Any

from tests.unit.groups.consumers import Consumer
from tests.unit.groups.shard import REFUSED, Shard

SESSION_MS = 45_000


def shard() -> Shard:
    made = Shard(consumer_assignment_interval_ms=0)
    made.topics.create("t", 4)
    return made


def told(shard: Shard) -> Any:
    """What stands of the group, without its living flags."""
    group: Any = shard.machine.state.store.groups["g"]
    return (group.epoch, group.target_epoch, dict(group.members), dict(group.target))


def test_a_member_whose_coming_is_too_large_hears_so_and_nobody_else() -> None:
    at = shard()
    one = Consumer(at, "a", "t")
    one.join()
    before = told(at)
    at.most_records = 0
    two = Consumer(at, "b", "t")
    assert two.ask(topic_partitions=[], **two.full) is REFUSED
    assert told(at) == before
    assert one.beat().error_code == 0
    at.most_records = None
    two.join()
    assert one.beat().assignment is not None, "half of it is asked back"


def test_members_that_were_refused_are_missed_no_later_than_others() -> None:
    at = shard()
    one = Consumer(at, "a", "t")
    one.join()
    at.most_records = 0
    assert one.ask(member_epoch=-1) is REFUSED
    assert "a" in told(at)[2]
    at.most_records = None
    at.pass_time(SESSION_MS - 1)
    assert "a" in told(at)[2]
    at.pass_time(1)
    assert not told(at)[2]


def test_an_expiry_that_is_too_large_is_tried_again_a_session_later() -> None:
    at = shard()
    Consumer(at, "a", "t").join()
    at.most_records = 0
    at.pass_time(SESSION_MS)
    assert "a" in told(at)[2]
    at.most_records = None
    at.pass_time(SESSION_MS)
    assert not told(at)[2]


def test_topics_that_changed_are_looked_at_again_when_the_first_look_was_too_large() -> None:
    at = shard()
    one = Consumer(at, "a", "t")
    one.join()
    epoch = told(at)[0]
    at.topics.create("t", 9)
    at.carry_out(at.machine.topics_changed(["t"], at.now))
    at.most_records = 0
    assert one.ask() is REFUSED
    assert told(at)[0] == epoch
    at.most_records = None
    one.beat()
    assert told(at)[0] == epoch + 1


def test_nobody_is_expected_to_give_up_what_a_refused_change_would_have_cost_it() -> None:
    at = shard()
    at.topics.create("u", 1)
    one = Consumer(at, "a", "t")
    one.join()
    at.most_records = 0
    assert one.ask(subscribed_topic_names=["u"], topic_partitions=one.owns()) is REFUSED
    at.most_records = None
    for _ in range(3):
        at.pass_time(30_000)
        assert one.beat().error_code == 0
    assert "a" in told(at)[2]
