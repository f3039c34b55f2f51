"""Steps of a coordinator that are carried out in slices: one step all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from scriba.broker.coordinators.markers import append_marker
from scriba.broker.coordinators.shard import Settled
from scriba.broker.coordinators.slices import ANSWERS_AT_ONCE, answer_in_turns
from scriba.broker.handlers.groups.offsets import txn_offset_commit
from scriba.broker.handlers.groups.txn import end_txn
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.classic.group import ClassicGroup, Member, Phase
from scriba.groups.offsets.commit import begin_simple_group
from scriba.groups.offsets.fetch import PAGE
from scriba.groups.store import OFFSETS_AT_ONCE
from scriba.records.batch import EndTxnMarker
from scriba.runtime.loop import pace
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages import groups as wire
from scriba.wire.messages.admin import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.messages.txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from scriba.wire.schema import Message
from tests.unit.broker.repeating import Committer

InANode = Callable[..., None]
MANY = 520
PRODUCER = (77, 0)
TID = "shop"


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not pass while a slice is done: every look at the clock ends one."""
    monkeypatch.setattr(pace, "SLICE_MS", 0)


class Asker(Committer):
    """Asks the coordinator of group g without a network in between: steps can be counted."""

    @property
    def index(self) -> int:
        return self.node.group_coordinators.partition_of("g")

    @property
    def busy(self) -> bool:
        return self.node.group_coordinators._shards[self.index].idle is not None

    def ask(self, request: Message, version: int) -> "asyncio.Future[Any]":
        """Begins at once."""
        ctx = Context(ANONYMOUS, "", None, "", ApiKey.OFFSET_COMMIT, version, 0)
        return asyncio.ensure_future(
            settled(self.node.group_coordinators.begin(self.index, request, ctx))
        )

    def commits(self, *offsets: int) -> "asyncio.Future[Any]":
        parts = [
            wire.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in enumerate(offsets)
        ]
        topic = wire.OffsetCommitRequestTopic(name="t", partitions=parts)
        return self.ask(wire.OffsetCommitRequest(group_id="g", topics=[topic]), 9)

    async def agrees_with_its_log(self) -> None:
        live, read = self.store(), await self.store_read_back()
        assert live.offsets == read.offsets
        assert live.pending == read.pending
        assert live.by_topic == read.by_topic
        assert live.unstable == read.unstable

    def fetches(self, **how: Any) -> "asyncio.Future[Any]":
        """All offsets of the group."""
        return self.ask(wire.OffsetFetchRequest(group_id="g", topics=None, **how), 7)

    def ends(self, commit: bool, producer: tuple[int, int]) -> None:
        where = ("__consumer_offsets", self.index)
        append_marker(self.node, where, producer, EndTxnMarker(commit, 0), 0)


async def settled(answer: Message | Awaitable[Message]) -> Message:
    return answer if isinstance(answer, Message) else await answer


def codes(answer: wire.OffsetCommitResponse) -> set[int]:
    return {each.error_code for topic in answer.topics for each in topic.partitions}


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_who_comes_during_a_large_commit_sees_all_of_it(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        large = one.commits(*range(MANY))
        assert one.busy
        small = one.commits(5_000)
        wanted = wire.OffsetFetchRequestTopic(name="t", partition_indexes=[MANY - 1])
        read = one.ask(wire.OffsetFetchRequest(group_id="g", topics=[wanted]), 7)
        turns = 0
        while one.busy:
            assert not small.done()
            assert not read.done()
            turns += 1
            await steps(1)
        assert turns > 10, "the loop went on"
        assert codes(await large) == codes(await small) == {0}
        assert (await read).topics[0].partitions[0].committed_offset == MANY - 1
        assert one.offsets() == [5_000, *range(1, MANY)]
        await one.agrees_with_its_log()

    in_a_node(script)


def test_what_happens_to_topics_meanwhile_is_heard_of_afterwards(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        await one.peer.call(gone, 6, DeleteTopicsResponse)
        await asyncio.sleep(1)
        assert not one.store().offsets
        await one.create("t", MANY)
        large = one.commits(*range(MANY))
        deleting = one.peer.send(gone, 6, DeleteTopicsResponse)
        assert codes(await large) == {0}
        await deleting
        await asyncio.sleep(1)
        assert not one.store().offsets, "a step as large as the commit"
        await one.agrees_with_its_log()

    in_a_node(script)


def test_news_of_a_topic_wait_for_the_end_of_a_large_commit(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        join = wire.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=60_000,
            topic_partitions=[],
            subscribed_topic_names=["t"],
        )
        assert (await one.ask(join, 1)).error_code == 0
        group: Any = one.store().groups["g"]
        epoch = group.members["m"].epoch
        again = wire.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)
        await one.ask(again, 1)
        assert not group.stale, "it has looked at its topics"
        topic = wire.OffsetCommitRequestTopic(
            name="t",
            partitions=[
                wire.OffsetCommitRequestPartition(partition_index=index) for index in range(MANY)
            ],
        )
        commit = wire.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=epoch, member_id="m", topics=[topic]
        )
        large = one.ask(commit, 9)
        assert one.busy
        node.group_coordinators.topics_changed(["t"])
        await steps(3)
        assert one.busy
        assert not group.stale
        assert codes(await large) == {0}
        await steps(200)
        assert group.stale

    in_a_node(script)


def test_a_group_with_many_offsets_is_deleted_as_one(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        await one.commits(*range(MANY))
        deleting = one.ask(wire.DeleteGroupsRequest(groups_names=["g"]), 2)
        assert one.busy
        small = one.commits(7)
        assert (await deleting).results[0].error_code == 0
        assert codes(await small) == {0}
        assert one.offsets() == [7], "the group began anew"
        await one.agrees_with_its_log()

    in_a_node(script)


@pytest.mark.parametrize("after", [0, 5, 12, 20])
def test_leadership_that_goes_during_a_large_commit_ends_it(in_a_node: InANode, after: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        large, waiting = one.commits(*range(MANY)), one.commits(1)
        await steps(after)
        partition = node.replicas.find("__consumer_offsets", one.index)
        node.group_coordinators.unload(one.index)
        await asyncio.wait([large, waiting])
        for each in (large, waiting):
            assert each.exception() is None or isinstance(each.exception(), KafkaError)
        node.on_lead(partition)
        await asyncio.sleep(1)
        assert codes(await one.commits(9)) == {0}
        assert len(one.offsets()) in (1, MANY), "all of it, or nothing"
        await one.agrees_with_its_log()

    in_a_node(script)


@pytest.mark.parametrize("after", range(0, 28, 4))
def test_a_transaction_that_ends_during_a_large_commit_leaves_what_the_log_says(
    in_a_node: InANode, after: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        await one.ask(in_a_transaction(range(0, MANY, 3)), 3)
        large = one.commits(*range(MANY))
        await steps(after)
        where = ("__consumer_offsets", one.index)
        append_marker(node, where, PRODUCER, EndTxnMarker(True, 0), 0)
        assert codes(await large) == {0}
        assert one.store().pending == {}
        await one.agrees_with_its_log()

    in_a_node(script)


@pytest.mark.parametrize("commit", [True, False])
def test_who_comes_while_a_large_transaction_ends_sees_all_or_nothing_of_it(
    in_a_node: InANode, commit: bool
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        await one.ask(in_a_transaction(range(MANY)), 3)
        await one.commits(*range(MANY // 2))
        one.ends(commit, PRODUCER)
        assert one.busy
        small, read = one.commits(7), one.fetches(require_stable=True)
        turns = 0
        while one.busy:
            assert not small.done()
            assert not read.done()
            turns += 1
            await steps(1)
        assert turns > MANY // OFFSETS_AT_ONCE
        assert codes(await small) == {0}
        told = [(p.committed_offset, p.error_code) for p in (await read).topics[0].partitions]
        later = [(1_000_000, 0)] * (MANY - MANY // 2) if commit else []
        assert told == [(7, 0), *((n, 0) for n in range(1, MANY // 2)), *later]
        await one.agrees_with_its_log()

    in_a_node(script)


@pytest.mark.parametrize("after", [0, 1, 3, 30])
def test_transactions_that_end_together_are_replayed_one_after_the_other(
    in_a_node: InANode, after: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        for producer in (77, 78, 79):
            await one.ask(in_a_transaction(range(producer - 77, MANY, 2), producer), 3)
        one.ends(True, (77, 0))
        await steps(after)
        one.ends(False, (78, 0))
        one.ends(True, (79, 0))
        assert codes(await one.commits(3)) == {0}
        assert not one.store().pending
        assert not one.store().unstable
        assert not one.busy
        await one.agrees_with_its_log()

    in_a_node(script)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_leadership_that_goes_while_a_large_transaction_ends_leaves_what_the_log_says(
    in_a_node: InANode, after: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        await one.ask(in_a_transaction(range(MANY)), 3)
        one.ends(True, PRODUCER)
        one.ends(True, (78, 0))
        await steps(after)
        partition = node.replicas.find("__consumer_offsets", one.index)
        node.group_coordinators.unload(one.index)
        node.on_lead(partition)
        await asyncio.sleep(1)
        assert codes(await one.commits(9)) == {0}
        assert one.offsets() == [9, *[1_000_000] * (MANY - 1)]
        await one.agrees_with_its_log()

    in_a_node(script)


def test_all_offsets_are_told_while_commits_go_on(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        await one.commits(*range(MANY))
        read = one.fetches()
        assert not one.busy
        turns = 0
        while not read.done():
            assert codes(await one.commits(1_000 + turns)) == {0}
            turns += 1
        assert turns >= MANY // PAGE
        told = [each.committed_offset for each in (await read).topics[0].partitions]
        assert told == list(range(MANY)), "as of the moment of the question"

    in_a_node(script)


def test_many_groups_are_listed_and_described_while_others_are_served(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(1)
        for n in range(MANY):
            begin_simple_group(one.store(), f"other {n}", 0)
        group = ClassicGroup("large", 0)
        for n in range(MANY):
            group.add(Member(f"m{n}", None, "", "", 1, 1, ()), "consumer")
        one.store().groups["large"] = group
        for request, version in (
            (wire.ListGroupsRequest(), 4),
            (wire.DescribeGroupsRequest(groups=["large"]), 5),
        ):
            answer, small = one.ask(request, version), one.commits(1)
            assert one.busy
            turns = 0
            while one.busy:
                turns += 1
                await steps(1)
            assert turns >= MANY // 250
            assert len((await answer).groups) == (MANY + 2 if version == 4 else 1)
            assert codes(await small) == {0}

    in_a_node(script)


def join_request(member_id: str) -> wire.JoinGroupRequest:
    return wire.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[wire.JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


def test_a_generation_of_many_members_is_formed_and_told_while_others_are_served(
    in_a_node: InANode,
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(1)
        group = ClassicGroup("g", 0)
        for n in range(MANY):
            group.add(Member(f"m{n}", None, "", "", 60_000, 60_000, (("range", b"x"),)), "consumer")
        group.phase = Phase.STABLE
        one.store().groups["g"] = group
        joins = [one.ask(join_request(name), 5) for name in group.members]
        assert one.busy
        late = one.ask(wire.HeartbeatRequest(group_id="g", member_id="m0", generation_id=1), 4)
        told: list[Any] = []
        while len(told) < MANY:
            before = len(told)
            await steps(1)
            told = [each for each in joins if each.done()]
            assert len(told) - before <= ANSWERS_AT_ONCE, "so many connections in one turn"
        assert not one.busy
        answers = [await each for each in joins]
        assert {(each.error_code, each.generation_id) for each in answers} == {(0, 1)}
        assert [len(each.members) for each in answers] == [MANY, *[0] * (MANY - 1)]
        assert (await late).error_code == 0, "asked while it was formed, answered by what it became"

    in_a_node(script)


def test_answers_for_many_wait_for_the_device_where_only_that_counts(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(1)
        group = ClassicGroup("g", 0)
        for n in range(MANY):
            group.add(Member(f"m{n}", None, "", "", 60_000, 60_000, (("range", b"x"),)), "consumer")
        group.phase, group.generation, group.protocol = Phase.COMPLETING, 1, "range"
        one.store().groups["g"] = group
        ask = partial(wire.SyncGroupRequest, group_id="g", generation_id=1)
        syncs = [one.ask(ask(member_id=f"m{n}"), 3) for n in range(1, MANY)]
        syncs.append(one.ask(ask(member_id="m0"), 3))
        partition = node.replicas.find("__consumer_offsets", one.index)
        end = partition.log.end_offset
        await asyncio.wait(syncs, return_when=asyncio.FIRST_COMPLETED)
        assert partition.log.end_offset > end
        assert partition.log.flushed_offset == partition.log.end_offset
        assert {(await each).error_code for each in syncs} == {0}

    in_a_node(script, log_flush_interval_messages=1)


def test_many_who_wait_hear_of_a_leadership_that_goes(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(1)
        partition = node.replicas.find("__consumer_offsets", one.index)

        async def gone() -> None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

        waiting: list[asyncio.Future[Settled]] = [
            asyncio.get_running_loop().create_future() for _ in range(MANY)
        ]
        waiting[1].cancel()
        answer = wire.HeartbeatResponse()
        await answer_in_turns(
            gone(), [(each, (answer, partition.log.end_offset)) for each in waiting]
        )
        heard = [each.result()[0] for each in waiting if not each.cancelled()]
        assert len(heard) == MANY - 1
        assert all(isinstance(each, KafkaError) for each in heard)

    in_a_node(script)


def test_many_who_wait_do_not_wait_for_slices_of_long_works(in_a_node: InANode) -> None:
    """One for every few of them: their sessions would end in the meantime."""

    async def script(node: Node, world: ProcessWorld) -> None:
        slices = 0

        async def work() -> None:
            nonlocal slices
            while True:
                await pace.next_turn()
                slices += 1

        async def committed() -> None:
            pass

        works = [asyncio.ensure_future(work()) for _ in range(4)]
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Settled]] = [loop.create_future() for _ in range(MANY)]
        answer = wire.HeartbeatResponse()
        await answer_in_turns(committed(), [(each, (answer, 0)) for each in waiting])
        assert all(each.done() for each in waiting)
        assert slices <= MANY // ANSWERS_AT_ONCE + 1, "one in a turn of the loop, whoever's it is"
        for each in works:
            each.cancel()

    in_a_node(script)


def test_offsets_of_a_transaction_that_ended_while_they_waited_are_refused(
    in_a_node: InANode,
) -> None:
    """Verified first and stored after a large step, they would open a transaction behind the
    marker that ended theirs, and nobody would ever end it."""

    async def script(node: Node, world: ProcessWorld) -> None:
        one = Asker(node, world)
        await one.ready(MANY)
        ask = one.peer.call
        await ask(FindCoordinatorRequest(key=TID, key_type=1), 2, FindCoordinatorResponse)
        begun = InitProducerIdRequest(transactional_id=TID, transaction_timeout_ms=60_000)
        loading = True
        while loading:
            found = await ask(begun, 4, InitProducerIdResponse)
            loading = found.error_code != 0
            await asyncio.sleep(0.01)
        mine: dict[str, Any] = {
            "transactional_id": TID,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
        }
        added = AddOffsetsToTxnRequest(group_id="g", **mine)
        assert (await ask(added, 3, AddOffsetsToTxnResponse)).error_code == 0
        producer = (found.producer_id, found.producer_epoch)
        request = in_a_transaction(range(1), *producer)
        request.transactional_id = TID
        ctx = Context(ANONYMOUS, "", None, "", ApiKey.TXN_OFFSET_COMMIT, 3, 0)
        large = one.commits(*range(MANY))
        assert one.busy
        late: Any = asyncio.ensure_future(answered(txn_offset_commit(node, ctx, request)))
        await steps(3)
        end = EndTxnRequest(committed=True, **mine)
        ended = Context(ANONYMOUS, "", None, "", ApiKey.END_TXN, 3, 0)
        told = await answered(end_txn(node, ended, end))
        assert told.error_code == 0
        assert one.busy, "the transaction ended while its offsets waited"
        assert codes(await large) == {0}
        assert codes(await late) != {0}
        await steps(20)
        assert one.store().pending == {}
        await one.agrees_with_its_log()

    in_a_node(script)


async def answered(answer: Any) -> Any:
    while isinstance(answer, Deferred):
        answer = await answer.awaitable
    return answer


def in_a_transaction(
    partitions: range, producer_id: int = PRODUCER[0], producer_epoch: int = PRODUCER[1]
) -> TxnOffsetCommitRequest:
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1_000_000)
        for index in partitions
    ]
    return TxnOffsetCommitRequest(
        group_id="g",
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=parts)],
    )
