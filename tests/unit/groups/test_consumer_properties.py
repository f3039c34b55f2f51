"""Consumer groups under random members, topics, time and crashes.

Whatever happens: no partition is with two members, neither by what the coordinator stores nor by
what the clients believe; commits of the past are refused; what is stored is what the log gives; and
once everybody heartbeats, all reach the target and every partition has an owner.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from scriba.errors import ErrorCode
from scriba.groups.consumer.group import ConsumerGroup, Phase
from tests.unit.groups.consumers import Consumer, group_of, picture
from tests.unit.groups.shard import Shard

NAMES = ["a", "b", "c", "d", "e"]
SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"subscribed_topic_names": ["t"]},
    {"subscribed_topic_names": ["t", "u"]},
    {"subscribed_topic_names": ["u", "missing"]},
    {"subscribed_topic_names": [], "subscribed_topic_regex": "t|new.*"},
    {"subscribed_topic_names": ["u"], "subscribed_topic_regex": "new-1"},
]
REJOIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(consumer_session_timeout_ms=20_000)
        self.shard.topics.create("t", 3)
        self.shard.topics.create("u", 2)
        self.consumers: dict[str, Consumer] = {}
        self.topics = 0

    # --- members ---

    @initialize(
        joining=st.lists(st.sampled_from(SUBSCRIPTIONS), min_size=2, max_size=4),
        static=st.booleans(),
    )
    def begin(self, joining: list[dict[str, Any]], static: bool) -> None:
        for subscription in joining:
            self.join(subscription, None, static)
            self.shard.pass_time(1_000)

    @rule(
        subscription=st.sampled_from(SUBSCRIPTIONS),
        assignor=st.sampled_from([None, "uniform", "range"]),
        static=st.booleans(),
    )
    def join(self, subscription: dict[str, Any], assignor: str | None, static: bool) -> None:
        name = next((name for name in NAMES if name not in self.consumers), None)
        if name is None:
            return
        facts: dict[str, Any] = {**subscription, "server_assignor": assignor}
        if static:
            facts["instance_id"] = name
        consumer = Consumer(self.shard, f"{name}-{len(self.shard.log)}", **facts)
        answer = consumer.join()
        if answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
            assert static
            return
        assert answer.error_code == 0, answer
        self.consumers[name] = consumer

    def heard(self, name: str, answer: Any) -> None:
        """A client that is fenced gives up all and joins again."""
        if answer.error_code in REJOIN:
            consumer = self.consumers.pop(name)
            consumer.owned = {}
        else:
            assert answer.error_code == 0, answer

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        consumer = self.consumers[name]
        consumer.lazy = data.draw(st.booleans())
        told = data.draw(st.booleans())
        self.heard(name, consumer.beat(**({} if told else {"topic_partitions": None})))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def lose_an_answer(self, data: st.DataObject) -> None:
        """The coordinator moves on, and the client does not know."""
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        self.heard(name, self.consumers[name].miss())

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), subscription=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, data: st.DataObject, subscription: dict[str, Any]) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        changes = {"subscribed_topic_regex": "", **subscription}
        self.consumers[name].full |= changes
        self.heard(name, self.consumers[name].beat(**changes))

    @rule(ms=st.sampled_from([0, 1_000, 4_000]))
    def all_beat(self, ms: int) -> None:
        self.shard.pass_time(ms)
        for name in sorted(self.consumers):
            self.heard(name, self.consumers[name].beat())

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))].obey()

    @precondition(lambda self: len(self.consumers) > 1)
    @rule(data=st.data(), how=st.sampled_from(["leave", "pause", "die"]))
    def go(self, data: st.DataObject, how: str) -> None:
        """Of one that dies without a word the session ends some time."""
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        consumer = self.consumers.pop(name)
        if how != "die":
            pause = how == "pause" and "instance_id" in consumer.full
            answer = consumer.leave(-2 if pause else -1)
            assert answer.error_code in {0, *REJOIN}, answer

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        consumer = self.consumers[name]
        group = self.shard.group()
        stored = group.members.get(consumer.member_id) if group is not None else None
        errors = self.shard.commit(
            {("t", 0): 1},
            member_id=consumer.member_id,
            generation_id_or_member_epoch=consumer.epoch,
        )
        if stored is None:
            assert errors["t", 0] != 0
        elif stored.epoch == consumer.epoch:
            assert errors["t", 0] == 0
        else:
            assert errors["t", 0] in (0, ErrorCode.STALE_MEMBER_EPOCH)

    # --- the world ---

    @rule(grown=st.sampled_from(["t", "u"]))
    def grow(self, grown: str) -> None:
        facts = self.shard.topics.topics[grown]
        if facts.partitions < 6:
            self.shard.topics.topics[grown] = facts._replace(partitions=facts.partitions + 1)
            self.shard.change_topics(grown)

    @rule()
    def create(self) -> None:
        if self.topics < 2:
            self.topics += 1
            self.shard.topics.create(f"new-{self.topics}", 1)
            self.shard.change_topics(f"new-{self.topics}")

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 15_000, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.shard.pass_time(ms)

    @rule()
    def crash(self) -> None:
        self.shard.crash()

    # --- what must hold ---

    @invariant()
    def one_owner_each_by_what_is_stored(self) -> None:
        group = self.shard.group()
        if not isinstance(group, ConsumerGroup):
            return
        seen: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            for place in member.places():
                assert place not in seen, f"{place} with {seen[place]} and {member.member_id}"
                seen[place] = member.member_id
        assert group.owners == seen

    @invariant()
    def one_owner_each_by_what_clients_believe(self) -> None:
        group = self.shard.group()
        seen: dict[tuple[bytes, int], str] = {}
        for consumer in self.consumers.values():
            if group is None or consumer.member_id not in group.members:
                continue
            for topic, held in consumer.owned.items():
                for partition in held:
                    assert (topic, partition) not in seen
                    seen[topic, partition] = consumer.member_id

    @invariant()
    def the_log_gives_what_is_stored(self) -> None:
        assert picture(self.shard) == picture(self.shard, self.shard.reloaded())

    @invariant()
    def the_compacted_log_gives_it_too(self) -> None:
        last = {entry[1]: entry for entry in self.shard.log}
        whole, self.shard.log = (
            self.shard.log,
            [entry for entry in self.shard.log if last[entry[1]] is entry and entry[2] is not None],
        )
        reloaded = self.shard.reloaded()
        self.shard.log = whole
        assert picture(self.shard) == picture(self.shard, reloaded)

    def teardown(self) -> None:
        """Everybody heartbeats in time: all come to rest at their targets."""
        for _ in range(30):
            self.shard.pass_time(4_000)
            for name in sorted(self.consumers):
                consumer = self.consumers[name]
                consumer.lazy = False
                consumer.obey()
                if consumer.beat().error_code:
                    consumer.join()
        group = self.shard.group()
        if not isinstance(group, ConsumerGroup) or not self.consumers:
            return
        assert {consumer.member_id for consumer in self.consumers.values()} == set(group.members)
        assert group_of(self.shard).phase() is Phase.STABLE
        wanted = {
            (facts.id, partition)
            for name in group.topics()
            if (facts := self.shard.topics.get(name)) is not None
            for partition in range(facts.partitions)
        }
        assert set(group.owners) == wanted
        for consumer in self.consumers.values():
            assert consumer.owned == {
                topic: set(held) for topic, held in group.target[consumer.member_id].items()
            }
        self.one_owner_each_by_what_clients_believe()


Groups.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestConsumerGroups = Groups.TestCase
