"""The same requests to a group coordinator of either kind, and its answers written down.

`tell` sends them and notes every answer: ids become numbers in the order they are first seen,
lists are sorted (Kafka's order is that of its hash tables), texts of errors are left out. What
Apache Kafka 4.3 answered stands in `data/kafka_4_3.txt`, written by `record_transcript.py`.
"""

import re
from pathlib import Path
from typing import Any, Protocol

from scriba.wire.messages import groups as wire
from scriba.wire.schema import Message, Struct
from tests.unit.groups.shard import PENDING, subscription

RECORDED = Path(__file__).parent / "data" / "kafka_4_3.txt"
INITIAL_DELAY_MS = 300
SESSION_MS = 6_000
TOPICS = {"t": 4, "u": 2}


class World(Protocol):
    """A coordinator that has the topics above and no groups."""

    def send(self, request: Message, version: int, client: str) -> int: ...

    def answer(self, token: int, *, soon: bool) -> Any:
        """The answer, or PENDING: `soon` where one is not expected to come without more."""
        ...

    def wait(self, ms: int) -> None: ...


class Teller:
    def __init__(self, world: World) -> None:
        self.world = world
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def note(self, label: str, answer: Any) -> Any:
        text = re.sub(
            r"[A-Za-z]+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", self._name, _show(answer)
        )
        self.lines.append(f"{label}: {text}")
        return answer

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"{found[0].split('-')[0]}-#{len(self._names) + 1}")

    def do(self, label: str, request: Message, version: int | None = None) -> Any:
        version = type(request).VERSIONS.high if version is None else version
        token = self.world.send(request, version, "client")
        return self.note(label, self.world.answer(token, soon=False))

    def join(self, label: str, client: str = "client", **facts: Any) -> int:
        """Joins; a dynamic member that is asked to come back with its new id does so."""
        token = self.world.send(join(**facts), 9, client)
        if not facts.get("member_id") and not facts.get("group_instance_id"):
            given = self.note(f"{label}, id", self.world.answer(token, soon=False))
            token = self.world.send(join(**(facts | {"member_id": given.member_id})), 9, client)
        return token

    def come(self, label: str, token: int) -> Any:
        return self.note(label, self.world.answer(token, soon=False))


def _show(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(sorted(_show(each) for each in value))}]"
    if not isinstance(value, Struct):
        return repr(value)
    shown = []
    for each in value.FIELDS:
        held = getattr(value, each.name)
        if each.name in ("error_message", "client_host", "topic_id", "throttle_time_ms"):
            held = bool(held)
        if held != each.default():
            shown.append(f"{each.name}={_show(held)}")
    return f"{type(value).__name__}({', '.join(shown)})"


# --- requests ---


def join(**facts: Any) -> wire.JoinGroupRequest:
    names = facts.pop("names", ["range"])
    common: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 8_000,
        "protocol_type": "consumer",
        "protocols": [
            wire.JoinGroupRequestProtocol(name=name, metadata=subscription("t")) for name in names
        ],
    }
    return wire.JoinGroupRequest(**(common | facts))


def sync(joined: Any, shares: dict[str, bytes] | None = None, **facts: Any) -> Message:
    common: dict[str, Any] = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [
            wire.SyncGroupRequestAssignment(member_id=member_id, assignment=share)
            for member_id, share in (shares or {}).items()
        ],
    }
    return wire.SyncGroupRequest(**(common | facts))


def beat(joined: Any, **facts: Any) -> Message:
    common = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
    }
    return wire.HeartbeatRequest(**(common | facts))


def leave(*members: tuple[str, str | None], group_id: str = "g") -> Message:
    identities = [
        wire.MemberIdentity(member_id=member_id, group_instance_id=instance)
        for member_id, instance in members
    ]
    return wire.LeaveGroupRequest(group_id=group_id, members=identities)


def commit(name: str = "t", *indexes: int, metadata: str | None = "", **facts: Any) -> Message:
    partitions = [
        wire.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=5, committed_metadata=metadata
        )
        for index in indexes or (0,)
    ]
    topic = wire.OffsetCommitRequestTopic(
        name=name, topic_id=facts.pop("topic_id", bytes(16)), partitions=partitions
    )
    return wire.OffsetCommitRequest(**({"group_id": "g", "topics": [topic]} | facts))


def fetch(*names: str, group_id: str = "g", **facts: Any) -> Message:
    """Partitions 0 and 1 of these topics; without names, all there is."""
    topics = [wire.OffsetFetchRequestTopics(name=n, partition_indexes=[0, 1]) for n in names]
    group = wire.OffsetFetchRequestGroup(
        **{"group_id": group_id, "topics": topics if names else None, **facts}
    )
    return wire.OffsetFetchRequest(groups=[group])


def describe(*group_ids: str) -> Message:
    return wire.DescribeGroupsRequest(groups=[*group_ids])


def delete_offsets(name: str, *indexes: int, group_id: str = "g") -> Message:
    partitions = [wire.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    topic = wire.OffsetDeleteRequestTopic(name=name, partitions=partitions)
    return wire.OffsetDeleteRequest(group_id=group_id, topics=[topic])


# --- the story ---


def tell(world: World) -> list[str]:
    teller = Teller(world)
    refused_joins(teller)
    requests_to_nobody(teller)
    simple_consumer(teller)
    a, b = first_generation(teller)
    strangers(teller, a, b)
    a, b, i = second_generation(teller, a, b)
    replaced(teller, i)
    leaving(teller, a, b)
    static_leader(teller)
    return teller.lines


def refused_joins(teller: Teller) -> None:
    for version in range(10):
        request = join(member_id="nobody", group_id="none")
        if version == 0:
            request.rebalance_timeout_ms = -1
        teller.do(f"join of nobody v{version}", request, version)
    teller.do("join without a group", join(group_id=""))
    teller.do("join, short session", join(session_timeout_ms=10))
    teller.do("join, long session", join(session_timeout_ms=1_800_001))
    teller.do("join without a type", join(group_id="bad", protocol_type=""))
    teller.do("join without a type v6", join(group_id="bad", protocol_type=""), 6)
    teller.do("join without protocols", join(group_id="bad", names=[]))
    teller.do("group of refused joins", describe("bad"))


def requests_to_nobody(teller: Teller) -> None:
    nobody = wire.JoinGroupResponse(generation_id=1, member_id="x")
    for group_id in ("none", ""):
        where = f"group {group_id!r}"
        for version in range(5):
            teller.do(f"heartbeat, {where} v{version}", beat(nobody, group_id=group_id), version)
        teller.do(f"sync, {where}", sync(nobody, group_id=group_id))
        unnamed = {"protocol_type": None, "protocol_name": None}
        for version in range(6):
            request = sync(nobody, group_id=group_id, **unnamed)
            teller.do(f"unnamed sync, {where} v{version}", request, version)
        for version in range(3):
            request = wire.LeaveGroupRequest(group_id=group_id, member_id="x")
            teller.do(f"leave, {where} v{version}", request, version)
        for version in range(3, 6):
            request = leave(("x", None), group_id=group_id)
            teller.do(f"leave, {where} v{version}", request, version)
        teller.do(f"delete offsets, {where}", delete_offsets("t", 0, group_id=group_id))
        teller.do(f"fetch, {where}", fetch("t", "zz", group_id=group_id), 9)
        teller.do(f"fetch all, {where}", fetch(group_id=group_id), 9)
    for version in range(7):
        teller.do(f"describe nothing v{version}", describe("none", ""), version)
    for version in range(1, 8):
        topics = [wire.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        request = wire.OffsetFetchRequest(group_id="none", topics=topics)
        teller.do(f"fetch v{version}", request, version)
    for version in range(2, 10):
        stray = commit(group_id="none", member_id="m", generation_id_or_member_epoch=3)
        teller.do(f"stray commit v{version}", stray, version)
    request = wire.DeleteGroupsRequest(groups_names=["none", "bad", "bad", ""])
    teller.do("delete groups", request)


def simple_consumer(teller: Teller) -> None:
    teller.do("commit, unknown topic", commit("zz", group_id="none"), 9)
    teller.do("commit, unknown partition", commit("t", 0, 9, group_id="s"), 9)
    teller.do("commit, unknown id", commit("", group_id="s", topic_id=b"x" * 16), 10)
    teller.do("commit, long metadata", commit(metadata="m" * 4097, group_id="s"), 9)
    teller.do("commit, metadata", commit(metadata="m" * 4096, group_id="s"), 9)
    teller.do("commit, no metadata", commit("t", 1, metadata=None, group_id="s"), 9)
    teller.do("commit, group ''", commit(group_id=""), 9)
    teller.do("fetch, group ''", fetch("t", group_id=""), 9)
    teller.do("commit, member, no generation", commit(group_id="s", member_id="x"), 9)
    teller.do("commit, own retention", commit("u", group_id="s", retention_time_ms=10**6), 4)
    teller.do("fetch", fetch("t", "u", group_id="s"), 9)
    teller.do("fetch all", fetch(group_id="s"), 9)
    teller.do("fetch all v10", fetch(group_id="s"), 10)
    teller.do("fetch as a member", fetch("t", group_id="s", member_id="mm", member_epoch=4), 9)
    teller.do("describe simple", describe("s"))
    teller.do("delete offsets", delete_offsets("t", 1, 3, 9, group_id="s"))
    teller.do("delete offsets, unknown", delete_offsets("zz", 0, group_id="s"))
    teller.do("fetch what is left", fetch(group_id="s"), 9)


def first_generation(teller: Teller) -> tuple[Any, Any]:
    first = teller.join("a", "appa")
    second = teller.join("b", "appb", names=["sticky", "range"])
    teller.do("describe preparing", describe("g"))
    teller.do("commit of a stranger, preparing", commit(), 9)
    teller.do("delete preparing", wire.DeleteGroupsRequest(groups_names=["g"]))
    teller.world.wait(4 * INITIAL_DELAY_MS)
    a, b = teller.come("a joined", first), teller.come("b joined", second)
    teller.do("describe completing", describe("g"))
    teller.do("heartbeat completing", beat(b))
    own = {"member_id": a.member_id, "generation_id_or_member_epoch": 1}
    teller.do("commit completing", commit(**own), 9)
    teller.do("b joins again", join(member_id=b.member_id, names=["sticky", "range"]))
    teller.do("a joins again", join(member_id=a.member_id))
    teller.do("sync, other generation", sync(a, generation_id=7))
    teller.do("sync, other type", sync(a, protocol_type="x"))
    teller.do("sync, other protocol", sync(a, protocol_name="x"))
    teller.do("sync, unknown instance", sync(a, group_instance_id="x"))
    waiting = teller.world.send(sync(b), 5, "appb")
    shares = {a.member_id: b"A", b.member_id: b"B", "ghost": b"G"}
    teller.do("a assigns", sync(a, shares))
    teller.come("b is assigned", waiting)
    return a, b


def strangers(teller: Teller, a: Any, b: Any) -> None:
    for version in (0, 6):
        teller.do(f"describe stable v{version}", describe("g"), version)
    for states, types in ((["STABLE", " "], ["Classic"]), (["junk"], []), ([], ["junk"])):
        request = wire.ListGroupsRequest(states_filter=states, types_filter=types)
        teller.do(f"list {states} {types}", request)
    teller.do("b syncs again", sync(b))
    teller.do("b joins again, stable", join(member_id=b.member_id, names=["sticky", "range"]))
    teller.do("join, other protocol", join(names=["other"]))
    teller.do("join, other type", join(protocol_type="connect"))
    teller.do("b joins with another protocol", join(member_id=b.member_id, names=["other"]))
    own: dict[str, Any] = {"member_id": a.member_id, "generation_id_or_member_epoch": 1}
    teller.do("commit", commit(**own), 9)
    teller.do("commit, old", commit(**(own | {"generation_id_or_member_epoch": 0})), 9)
    teller.do("commit, no generation", commit(member_id=a.member_id), 9)
    teller.do("commit of a stranger", commit(), 9)
    teller.do("commit, unknown instance", commit(**own, group_instance_id="i"), 9)
    teller.do("delete subscribed", delete_offsets("t", 0))
    teller.do("delete not subscribed", delete_offsets("u", 0))
    teller.do("heartbeat, old", beat(a, generation_id=0))
    teller.do("heartbeat of a stranger", beat(a, member_id="z"))
    teller.do("heartbeat, unknown instance", beat(a, group_instance_id="z"))
    teller.do("fetch as a", fetch("t", member_id=a.member_id, member_epoch=1), 9)
    teller.do("fetch as a, other epoch", fetch("t", member_id=a.member_id, member_epoch=7), 9)
    teller.do("join, unknown instance", join(member_id=a.member_id, group_instance_id="i"))


def second_generation(teller: Teller, a: Any, b: Any) -> tuple[Any, Any, Any]:
    third = teller.join("i", group_instance_id="i")
    teller.do("heartbeat preparing", beat(b))
    own = {"member_id": b.member_id, "generation_id_or_member_epoch": 1}
    teller.do("commit preparing", commit(**own), 9)
    first = teller.join("a", "appa", member_id=a.member_id)
    second = teller.join("b", "appb", member_id=b.member_id, names=["sticky", "range"])
    a, b = teller.come("a joined", first), teller.come("b joined", second)
    i = teller.come("i joined", third)
    shares = {a.member_id: b"A", b.member_id: b"B", i.member_id: b"I"}
    teller.do("a assigns", sync(a, shares))
    teller.do("b syncs", sync(b))
    teller.do("i syncs", sync(i, group_instance_id="i"))
    return a, b, i


def replaced(teller: Teller, old: Any) -> None:
    back = teller.do("i returns", join(group_instance_id="i"))
    teller.do("i syncs", sync(back, group_instance_id="i"))
    teller.do("old i beats", beat(old, group_instance_id="i"))
    teller.do("old i beats without instance", beat(old))
    for version in (6, 9):
        request = join(member_id=old.member_id, group_instance_id="i")
        teller.do(f"old i joins v{version}", request, version)
    teller.do("old i syncs", sync(old, group_instance_id="i"))
    teller.do("old i leaves", leave((old.member_id, "i")))
    own = {"member_id": old.member_id, "generation_id_or_member_epoch": 2}
    teller.do("old i commits", commit(**own, group_instance_id="i"), 9)


def leaving(teller: Teller, a: Any, b: Any) -> None:
    some = [(a.member_id, None), ("zz", None), ("", "i"), ("", "k"), (b.member_id, "k"), ("", None)]
    teller.do("some leave", leave(*some))
    teller.do("b beats", beat(b))
    teller.do("describe b", describe("g"))
    teller.do("b leaves", leave((b.member_id, None)))
    teller.do("describe empty", describe("g"))
    teller.do("commit, empty", commit(), 9)
    own = {"member_id": b.member_id, "generation_id_or_member_epoch": 2}
    teller.do("commit of b, empty", commit(**own), 9)
    teller.do("b beats, empty", beat(b))
    teller.do("b syncs, empty", sync(b))
    teller.do("b joins, empty", join(member_id=b.member_id))
    teller.do("delete offsets, empty", delete_offsets("t", 0))
    teller.do("delete empty", wire.DeleteGroupsRequest(groups_names=["g"]))
    teller.do("describe deleted", describe("g"))
    teller.do("fetch deleted", fetch(), 9)


def static_leader(teller: Teller) -> None:
    first = teller.join("L", group_id="st", group_instance_id="L")
    second = teller.join("F", group_id="st", group_instance_id="F")
    teller.world.wait(4 * INITIAL_DELAY_MS)
    leader, follower = teller.come("L joined", first), teller.come("F joined", second)
    shares = {leader.member_id: b"L", follower.member_id: b"F"}
    teller.do("L assigns", sync(leader, shares, group_id="st", group_instance_id="L"))
    teller.do("F syncs", sync(follower, group_id="st"))
    for version in (9, 8, 5):
        request = join(group_id="st", group_instance_id="L")
        teller.do(f"L returns v{version}", request, version)
    teller.do("describe st", describe("st"))
    request = join(
        group_id="st",
        member_id=follower.member_id,
        group_instance_id="F",
        names=["x", "range"],
    )
    waiting = teller.world.send(request, 9, "client")
    assert teller.world.answer(waiting, soon=True) is PENDING
    teller.do("describe st, F joins anew", describe("st"))
