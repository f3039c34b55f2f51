"""A long conversation with a group coordinator, of which Kafka's side was written down.

What is said next never depends on which coordinator answers, save for ids that it gave out. Left
out are texts of errors, the heartbeat interval, and subscriptions by expression, where the two
differ on purpose.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scriba.errors import ErrorCode
from scriba.wire.messages import groups as wire

Step = tuple[str, Any]
T = [0, 1, 2, 3]


class Side:
    """One coordinator: `ask` sends a request in a version, `ids` are its topics t (4 partitions)
    and u (2)."""

    def __init__(self, ask: Callable[[Any, int], Any], ids: Mapping[str, bytes]) -> None:
        self.ask = ask
        self.ids = ids
        self.names = {topic_id: name for name, topic_id in ids.items()}

    def beat(self, member_id: str, epoch: int, **facts: Any) -> Any:
        owned: Mapping[str, list[int]] | None = facts.pop("owned", None)
        if owned is not None:
            facts["topic_partitions"] = [
                wire.ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=self.ids[name], partitions=held
                )
                for name, held in owned.items()
            ]
        facts = {"group_id": "g", **facts}
        request = wire.ConsumerGroupHeartbeatRequest(
            member_id=member_id, member_epoch=epoch, **facts
        )
        answer = self.ask(request, 1)
        share = None
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            share = {self.names[each.topic_id]: sorted(each.partitions) for each in topics}
        return [_error(answer), answer.member_epoch, share]

    def join(self, member_id: str, *topics: str, **facts: Any) -> Any:
        full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [*topics], "owned": {}}
        return self.beat(member_id, 0, **(full | facts))

    def commit(self, member_id: str, epoch: int, partitions: list[int], version: int = 10) -> Any:
        topic = wire.OffsetCommitRequestTopic(
            name="t" if version < 10 else "",
            topic_id=self.ids["t"] if version >= 10 else bytes(16),
            partitions=[
                wire.OffsetCommitRequestPartition(partition_index=each, committed_offset=3)
                for each in partitions
            ],
        )
        request = wire.OffsetCommitRequest(
            group_id="g",
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[topic],
        )
        answer = self.ask(request, version)
        return [_error(each) for topic in answer.topics for each in topic.partitions]

    def fetch(self, member_id: str, epoch: int) -> Any:
        group = wire.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch)
        return _error(self.ask(wire.OffsetFetchRequest(groups=[group]), 9).groups[0])

    def describe(self, group_id: str = "g") -> Any:
        request = wire.ConsumerGroupDescribeRequest(group_ids=[group_id])
        group = self.ask(request, 1).groups[0]
        members = [
            [
                _short(each.member_id),
                each.member_epoch,
                each.instance_id,
                each.subscribed_topic_names,
                each.subscribed_topic_regex,
                _shares(each.assignment),
                _shares(each.target_assignment),
                each.member_type,
            ]
            for each in group.members
        ]
        epochs = [group.group_epoch, group.assignment_epoch]
        return [_error(group), group.group_state, epochs, group.assignor_name, sorted(members)]

    def describe_classic(self, group_id: str = "g", version: int = 6) -> Any:
        answer = self.ask(wire.DescribeGroupsRequest(groups=[group_id]), version)
        group = answer.groups[0]
        return [_error(group), group.group_state, group.protocol_data, len(group.members)]

    def classic_join(self, member_id: str = "", version: int = 9, **facts: Any) -> Any:
        owned: Mapping[str, list[int]] = facts.pop("owned", {})
        subscription = wire.ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=[
                wire.ConsumerProtocolSubscriptionTopicPartition(topic=name, partitions=held)
                for name, held in owned.items()
            ],
        )
        metadata = b"\0\3" + subscription.encode(3)
        name = facts.pop("name", "range")
        full: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [wire.JoinGroupRequestProtocol(name=name, metadata=metadata)],
        }
        return self.ask(wire.JoinGroupRequest(member_id=member_id, **(full | facts)), version)

    def sync(self, member_id: str, generation: int, **facts: Any) -> Any:
        full = {"group_id": "g", "protocol_type": "consumer", "protocol_name": "range"}
        request = wire.SyncGroupRequest(
            member_id=member_id, generation_id=generation, **(full | facts)
        )
        answer = self.ask(request, 5)
        share = None
        if answer.assignment:
            read, _ = wire.ConsumerProtocolAssignment.decode_from(answer.assignment, 2, 3)
            share = {each.topic: sorted(each.partitions) for each in read.assigned_partitions}
        return [_error(answer), answer.protocol_name, share]

    def classic_beat(self, member_id: str, generation: int) -> Any:
        request = wire.HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
        return _error(self.ask(request, 4))

    def delete(self) -> Any:
        return _error(self.ask(wire.DeleteGroupsRequest(groups_names=["g"]), 2).results[0])


def _error(answer: Any) -> str:
    return ErrorCode(answer.error_code).name


def _short(member_id: str) -> str:
    return member_id if len(member_id) < 10 else "given out"


def _shares(assignment: Any) -> Any:
    return {each.topic_name: sorted(each.partitions) for each in assignment.topic_partitions}


def _joined(answer: Any) -> Any:
    return [
        _error(answer),
        answer.generation_id,
        answer.protocol_type,
        answer.protocol_name,
        bool(answer.leader),
        len(answer.members),
        bool(answer.member_id),
    ]


def dialogue(s: Side) -> Iterator[Step]:
    yield from _senseless(s)
    yield from _two_members(s)
    yield from _commits(s)
    yield from _subscriptions_and_statics(s)
    yield from _upwards(s)
    yield from _downwards(s)


def _senseless(s: Side) -> Iterator[Step]:
    yield "no member id", s.beat("", 0)
    yield "no such group", s.beat("a", 3)
    yield "leaves no such group", s.beat("a", -1)
    yield "no rebalance timeout", s.join("a", "t", rebalance_timeout_ms=-1)
    yield "owns while joining", s.join("a", "t", owned={"t": [0]})
    yield "no subscription", s.join("a", subscribed_topic_names=None)
    yield "static leave without instance", s.beat("a", -2)
    yield "impossible epoch", s.beat("a", -3)
    yield "unknown assignor", s.join("a", "t", server_assignor="none")
    yield "empty rack", s.join("a", "t", rack_id="")
    yield "bad expression", s.join("a", subscribed_topic_regex="(")


def _two_members(s: Side) -> Iterator[Step]:
    yield "a joins", s.join("a", "t")
    yield "a is quiet", s.beat("a", 2)
    yield (
        "a says all",
        s.beat("a", 2, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], owned={"t": T}),
    )
    yield "a from the future", s.beat("a", 9)
    yield "a from the past", s.beat("a", 1)
    yield "a stranger", s.beat("zz", 1)
    yield "b joins", s.join("b", "t")
    yield "described", s.describe()
    yield "a must give up", s.beat("a", 2)
    yield "a says nothing", s.beat("a", 2)
    yield "a has not", s.beat("a", 2, owned={"t": T})
    yield "b waits", s.beat("b", 3)
    yield "described", s.describe()
    yield "a commits meanwhile", s.commit("a", 2, [0])
    yield "a has", s.beat("a", 2, owned={"t": [0, 1]})
    yield "a did not hear", s.beat("a", 2, owned={"t": [0, 1]})
    yield "b gets its share", s.beat("b", 3)
    yield "described", s.describe()


def _commits(s: Side) -> Iterator[Step]:
    yield "of what it kept, at the old epoch", s.commit("a", 2, [0, 1])
    yield "of what it gave up", s.commit("a", 2, [2, 3])
    yield "of both", s.commit("a", 2, T)
    yield "at its epoch", s.commit("a", 3, T)
    yield "at a later epoch", s.commit("a", 4, [0])
    yield "of a stranger", s.commit("x", 3, [0])
    yield "of an administrator", s.commit("", -1, [0])
    yield "in a version too old", s.commit("a", 3, [0], 8)
    yield "read at another epoch", s.fetch("a", 77)
    yield "read by a stranger", s.fetch("x", 3)


def _subscriptions_and_statics(s: Side) -> Iterator[Step]:
    yield "a joins again", s.join("a", "t")
    yield "a wants u", s.beat("a", 3, subscribed_topic_names=["u"], owned={"t": [0, 1]})
    yield "described", s.describe()
    yield "a gave up t", s.beat("a", 3, owned={})
    yield "b has all of t", s.beat("b", 3)
    yield "b is quiet", s.beat("b", 4)
    yield "e wants nothing", s.join("e")
    yield "described", s.describe()
    yield "e leaves", s.beat("e", -1)
    yield "e leaves again", s.beat("e", -1)
    yield "static", s.join("s1", "t", instance_id="i")
    yield "another of that instance", s.join("s2", "t", instance_id="i")
    yield "itself again", s.join("s1", "t", instance_id="i")
    yield "the other leaves", s.beat("s2", -2, instance_id="i")
    yield "an unknown instance leaves", s.beat("s2", -2, instance_id="j")
    yield "it leaves for a while", s.beat("s1", -2, instance_id="i")
    yield "described", s.describe()
    yield "it forgot that", s.beat("s1", 5, instance_id="i")
    yield "it comes back as another", s.join("s2", "t", instance_id="i")
    yield "the old one", s.beat("s1", 5, instance_id="i")
    yield "described", s.describe()
    yield "described as classic", s.describe_classic()
    yield "in an older version", s.describe_classic(version=5)
    yield "deleted", s.delete()
    for name in ("a", "b"):
        yield f"{name} leaves", s.beat(name, -1)
    yield "s2 leaves", s.beat("s2", -1, instance_id="i")
    yield "described", s.describe()
    yield "deleted", s.delete()


def _upwards(s: Side) -> Iterator[Step]:
    answer = s.classic_join()
    yield "a classic member", _joined(answer)
    old = answer.member_id
    yield "joins", _joined(s.classic_join(old))
    topic = wire.ConsumerProtocolAssignmentTopicPartition(topic="t", partitions=T)
    message = wire.ConsumerProtocolAssignment(assigned_partitions=[topic])
    share = wire.SyncGroupRequestAssignment(member_id=old, assignment=b"\0\3" + message.encode(3))
    yield "assigns", s.sync(old, 1, assignments=[share])
    yield "a new member", s.join("n", "t")
    yield "described", s.describe()
    yield "the old one hears of it", s.classic_beat(old, 1)
    yield "syncs first", s.sync(old, 1)
    yield "without a name", s.sync(old, 1, protocol_type=None, protocol_name=None)
    yield "joins owning all", _joined(s.classic_join(old, owned={"t": T}))
    yield "syncs", s.sync(old, 1)
    yield "by another name", s.sync(old, 1, protocol_name="zz")
    yield "is told to join again", s.classic_beat(old, 1)
    yield "described", s.describe()
    yield "joins owning half", _joined(s.classic_join(old, owned={"t": [0, 1]}))
    yield "syncs", s.sync(old, 2)
    yield "is quiet", s.classic_beat(old, 2)
    yield "of another generation", s.classic_beat(old, 3)
    yield "of the other protocol", s.classic_beat("n", 2)
    yield "n gets its share", s.beat("n", 2)
    yield "described", s.describe()
    yield "commits", s.commit(old, 2, [0], 8)
    yield "commits of the generation before", s.commit(old, 1, [0], 8)
    yield "commits of the next", s.commit(old, 3, [0], 8)
    yield "another assignor", _joined(s.classic_join(name="zz"))
    yield "another protocol", _joined(s.classic_join(protocol_type="connect"))
    yield "nameless", _joined(s.classic_join())
    yield "nameless, of old", _joined(s.classic_join(version=3))
    yield "with an id of its own", _joined(s.classic_join("own"))


def _downwards(s: Side) -> Iterator[Step]:
    leaving = [
        wire.MemberIdentity(member_id="own"),
        wire.MemberIdentity(member_id="nobody"),
        wire.MemberIdentity(member_id="x", group_instance_id="u"),
    ]
    answer = s.ask(wire.LeaveGroupRequest(group_id="g", members=leaving), 5)
    yield "some leave", [_error(each) for each in answer.members]
    yield "the last new member leaves", s.beat("n", -1)
    yield "described", s.describe()
    yield "described as classic", s.describe_classic()
    yield "a new static member", s.join("k", "t", group_id="g2", instance_id="one")
    answer = s.classic_join(group_id="g2", group_instance_id="one")
    yield "comes back as a classic one", _joined(answer)
    yield "described as classic", s.describe_classic("g2")
    yield "syncs", s.sync(answer.member_id, 2, group_id="g2", group_instance_id="one")
