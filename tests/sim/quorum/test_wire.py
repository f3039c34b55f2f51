"""What controllers answer on the wire: to observers, to voters that moved, and to nonsense."""

import asyncio
from typing import Any

import pytest

from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.wire import TOPIC, TOPIC_ID
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.events import EventKind
from scriba.raft.allowance import MOST_AT_ONCE
from scriba.raft.messages import Position
from scriba.raft.roles import LAST_EPOCH
from scriba.wire.messages import quorum as messages
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from scriba.wire.messages.metadata import DescribeClusterRequest
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from tests.sim.quorum.nodes import SMALL, SimQuorum, play, shortened, write, written
from tests.sim.quorum.voter_requests import ask


def vote(node: Node, **changes: Any) -> messages.VoteRequest:
    raft = node.metadata.quorum.raft
    facts: dict[str, Any] = {
        "replica_epoch": raft.epoch + 1,
        "replica_id": 99,
        "replica_directory_id": b"x" * 16,
        "voter_directory_id": raft.own.directory,
        "last_offset_epoch": raft.epoch,
        "last_offset": raft.log.end_offset + 10,
        "pre_vote": False,
    }
    top: dict[str, Any] = {"cluster_id": node.cluster_id, "voter_id": node.id}
    name = changes.pop("topic_name", TOPIC)
    facts |= {key: value for key, value in changes.items() if key in facts}
    top |= {key: value for key, value in changes.items() if key in top}
    partition = messages.VoteRequestPartitionData(
        partition_index=changes.get("partition_index", 0), **facts
    )
    topic = messages.VoteRequestTopicData(topic_name=name, partitions=[partition])
    return messages.VoteRequest(topics=[topic], **top)


def code_of(response: Any) -> ErrorCode:
    if response.error_code:
        return ErrorCode(response.error_code)
    topics = getattr(response, "topics", None) or response.responses
    return ErrorCode(topics[0].partitions[0].error_code)


def test_vote_that_is_meant_for_somebody_else_or_makes_no_sense_is_refused_with_its_code() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        asked = next(i for i in quorum.ids if i != leader)
        node = quorum.node(asked)
        epoch = node.metadata.quorum.raft.epoch
        for changes, code in (
            ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
            ({"voter_id": 77}, ErrorCode.INVALID_VOTER_KEY),
            ({"voter_directory_id": b"y" * 16}, ErrorCode.INVALID_VOTER_KEY),
            ({"replica_epoch": epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
            ({"replica_epoch": LAST_EPOCH}, ErrorCode.INVALID_REQUEST),
            ({"last_offset_epoch": epoch + 1}, ErrorCode.INVALID_REQUEST),
            ({"last_offset_epoch": -1}, ErrorCode.INVALID_REQUEST),
            ({"last_offset": -1}, ErrorCode.INVALID_REQUEST),
            ({"replica_id": -1}, ErrorCode.INVALID_REQUEST),
            ({"topic_name": "t"}, ErrorCode.INVALID_REQUEST),
            ({"partition_index": 1}, ErrorCode.INVALID_REQUEST),
        ):
            answer = await ask(quorum, asked, vote(node, **changes))
            assert code_of(answer) is code, changes
        assert node.metadata.quorum.raft.epoch == epoch, "none of them moved anything"
        assert await quorum.leader() == leader

    play(story)


def test_peer_that_has_controllers_skip_epochs_is_named_and_soon_refused() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        asked = next(i for i in quorum.ids if i != leader)
        node = quorum.node(asked)
        raft = node.metadata.quorum.raft
        refused = 0
        for _ in range(4):
            epoch = raft.epoch + MOST_AT_ONCE // 2
            ahead = vote(node, replica_epoch=epoch, last_offset_epoch=0, last_offset=0)
            refused += code_of(await ask(quorum, asked, ahead)) is ErrorCode.INVALID_REQUEST
        assert refused >= 1, "each of them would have used up half a million"
        assert raft.epoch < 2 * MOST_AT_ONCE
        told = {
            each.kind: each for each in node.events.page(0, 1000).events if "99 at" in each.about
        }
        assert set(told) == {EventKind.QUORUM_EPOCHS_SKIPPED, EventKind.QUORUM_FAULT}
        assert await quorum.leader() in quorum.ids, "a leader of a later epoch"
        await quorum.same_image()

    play(story)


def test_leader_that_contradicts_the_known_one_is_refused_and_nobody_ends() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        asked = next(i for i in quorum.ids if i != leader)
        node = quorum.node(asked)
        epoch = node.metadata.quorum.raft.epoch

        def begin(told: int, at: int) -> messages.BeginQuorumEpochRequest:
            partition = messages.BeginQuorumEpochRequestPartitionData(
                partition_index=0, leader_id=told, leader_epoch=at
            )
            topic = messages.BeginQuorumEpochRequestTopicData(
                topic_name=TOPIC, partitions=[partition]
            )
            return messages.BeginQuorumEpochRequest(
                cluster_id=node.cluster_id, voter_id=asked, topics=[topic]
            )

        for told, at, code in (
            (next(i for i in quorum.ids if i not in (leader, asked)), epoch, "INVALID_REQUEST"),
            (asked, epoch + 1, "INVALID_REQUEST"),
            (-1, epoch + 1, "INVALID_REQUEST"),
            (leader, LAST_EPOCH, "INVALID_REQUEST"),
            (leader, epoch - 1, "FENCED_LEADER_EPOCH"),
            (leader, epoch, "NONE"),
        ):
            answer = await ask(quorum, asked, begin(told, at))
            assert code_of(answer).name == code
            partition = answer.topics[0].partitions[0]
            assert (partition.leader_id, partition.leader_epoch) == (leader, epoch)
        await quorum.same_image()

    play(story)


def test_every_version_is_answered_and_names_the_leader_where_it_can() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        asked = next(i for i in quorum.ids if i != leader)
        node = quorum.node(asked)
        epoch = node.metadata.quorum.raft.epoch
        end = messages.EndQuorumEpochRequestPartitionData(leader_id=leader, leader_epoch=epoch - 1)
        begin = messages.BeginQuorumEpochRequestPartitionData(
            leader_id=leader, leader_epoch=epoch - 1
        )
        requests: list[Any] = [
            vote(node, replica_epoch=epoch - 1),
            messages.BeginQuorumEpochRequest(
                cluster_id=node.cluster_id,
                topics=[
                    messages.BeginQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[begin])
                ],
            ),
            messages.EndQuorumEpochRequest(
                cluster_id=node.cluster_id,
                topics=[
                    messages.EndQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[end])
                ],
            ),
            snapshot_request(node, Position(1, 3), epoch=epoch - 1),
        ]
        for request in requests:
            for version in range(request.VERSIONS.low, request.VERSIONS.high + 1):
                answer = await ask(quorum, asked, request, version)
                assert code_of(answer) is ErrorCode.FENCED_LEADER_EPOCH, (request, version)
                named = [end.node_id for end in answer.node_endpoints]
                assert named == ([leader] if version else [])
        for version in range(FetchRequest.VERSIONS.low, FetchRequest.VERSIONS.high + 1):
            old = version < 12
            request = fetch(node, version=version, last_epoch=-1 if old else 0)
            answer = await ask(quorum, asked, request, version)
            code = "UNSUPPORTED_VERSION" if old else "NOT_LEADER_OR_FOLLOWER"
            assert code_of(answer).name == code, version
            assert [end.node_id for end in answer.node_endpoints] == [leader] * (version >= 16)

    play(story)


def fetch(node: Node, **changes: Any) -> FetchRequest:
    raft = node.metadata.quorum.raft
    partition = FetchPartition(
        partition=changes.get("partition", 0),
        current_leader_epoch=changes.get("epoch", raft.epoch),
        fetch_offset=changes.get("offset", 0),
        last_fetched_epoch=changes.get("last_epoch", 0),
        partition_max_bytes=1 << 20,
        replica_directory_id=b"z" * 16,
    )
    topic_id = changes.get("topic_id", TOPIC_ID)
    new = changes.get("version", FetchRequest.VERSIONS.high) >= 15
    return FetchRequest(
        cluster_id=changes.get("cluster_id", node.cluster_id),
        replica_id=-1 if new else 55,
        replica_state=ReplicaState(replica_id=55 if new else -1),
        max_wait_ms=changes.get("max_wait_ms", 0),
        topics=[FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[partition])],
    )


def test_fetch_of_the_metadata_gets_records_or_the_code_that_says_why_not() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        node = quorum.node(leader)
        await write(node, 4711)
        epoch = node.metadata.quorum.raft.epoch
        for changes, code in (
            ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
            ({"topic_id": b"q" * 16}, ErrorCode.INVALID_REQUEST),
            ({"partition": 3}, ErrorCode.INVALID_REQUEST),
            ({"epoch": epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
            ({"epoch": epoch + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ({"offset": -1}, ErrorCode.INVALID_REQUEST),
            ({"last_epoch": -1}, ErrorCode.INVALID_REQUEST),
            ({"last_epoch": epoch + 5}, ErrorCode.INVALID_REQUEST),
            ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
            ({}, ErrorCode.NONE),
        ):
            assert code_of(await ask(quorum, leader, fetch(node, **changes))) is code, changes
        answer = await ask(quorum, leader, fetch(node))
        data = answer.responses[0].partitions[0]
        assert len(data.records) > 100
        assert data.high_watermark == node.metadata.quorum.raft.high_watermark
        diverged = await ask(quorum, leader, fetch(node, offset=500, last_epoch=epoch))
        told = diverged.responses[0].partitions[0].diverging_epoch
        assert (told.epoch, told.end_offset) == (epoch, node.metadata.quorum.raft.log.end_offset)
        other = next(i for i in quorum.ids if i != leader)
        answer = await ask(quorum, other, fetch(node), by=leader)
        assert code_of(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        told = answer.responses[0].partitions[0].current_leader
        assert (told.leader_id, told.leader_epoch) == (leader, epoch)
        assert [(e.node_id, e.host, e.port) for e in answer.node_endpoints] == [
            (leader, f"n{leader}", 9093)
        ]

    play(story)


def snapshot_request(node: Node, wanted: Position, **changes: Any) -> Any:
    partition = messages.FetchSnapshotRequestPartitionSnapshot(
        partition=changes.get("partition", 0),
        current_leader_epoch=changes.get("epoch", node.metadata.quorum.raft.epoch),
        snapshot_id=messages.FetchSnapshotRequestSnapshotId(
            end_offset=wanted.offset, epoch=wanted.epoch
        ),
        position=changes.get("position", 0),
    )
    topic = messages.FetchSnapshotRequestTopicSnapshot(
        name=changes.get("name", TOPIC), partitions=[partition]
    )
    return messages.FetchSnapshotRequest(
        cluster_id=changes.get("cluster_id", node.cluster_id), max_bytes=100, topics=[topic]
    )


def test_snapshot_is_served_in_slices_and_what_is_not_there_gets_its_code() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await shortened(quorum, leader)
        node = quorum.node(leader)
        at = snapshots.find(node.world.disk, node.metadata.quorum.directory)[0]
        size = node.world.disk.size(f"{node.metadata.quorum.directory}/{snapshots.file_name(at)}")
        epoch = node.metadata.quorum.raft.epoch
        for wanted, changes, code in (
            (at, {"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
            (at, {"name": "t"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (at, {"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (at, {"epoch": epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
            (at, {"epoch": epoch + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (Position(1, 3), {}, ErrorCode.SNAPSHOT_NOT_FOUND),
            (Position(-1, -1), {}, ErrorCode.SNAPSHOT_NOT_FOUND),
            (at, {"position": size}, ErrorCode.POSITION_OUT_OF_RANGE),
            (at, {"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
            (at, {}, ErrorCode.NONE),
        ):
            answer = await ask(quorum, leader, snapshot_request(node, wanted, **changes))
            assert code_of(answer) is code, (wanted, changes)
        data = answer.topics[0].partitions[0]
        assert (data.size, len(data.unaligned_records)) == (size, 100)

    play(story, 1, **SMALL)


def test_no_answer_is_larger_than_the_settings_of_whoever_answers() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await shortened(quorum, leader)
        node = quorum.node(leader)
        at = snapshots.find(node.world.disk, node.metadata.quorum.directory)[0]
        slice_ = await ask(quorum, leader, snapshot_request(node, at))
        assert len(slice_.topics[0].partitions[0].unaligned_records) == 60, "and 100 were asked for"
        start = node.metadata.quorum.raft.log.start
        for value in range(1, 6):
            await write(node, value)
        asked = fetch(node, offset=start.offset, last_epoch=start.epoch)
        records = (await ask(quorum, leader, asked)).responses[0].partitions[0].records
        assert 0 < len(records) <= 300, "several batches, of which there are more"

    few = {"controller_quorum_fetch_max_bytes": "300"}
    play(story, 1, **SMALL, **few, controller_quorum_fetch_snapshot_max_bytes="60")


def test_node_that_lags_behind_the_log_begins_with_the_leaders_snapshot() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        late = next(i for i in quorum.ids if i != leader)
        quorum.kill(late)
        before = await shortened(quorum, leader)
        await quorum.start(late)
        await quorum.same_image(30)
        node = quorum.node(late)
        assert node.metadata.quorum.log.start_offset >= before.offset > 0
        assert written(node) == written(quorum.node(leader)) > 0
        assert node.metadata.quorum.raft.is_voter, "the snapshot names the voters"
        quorum.kill(leader)
        heir = await quorum.leader()
        await write(quorum.node(heir), 9999)
        await quorum.start(leader)
        await quorum.same_image(30)

    play(story, 1, **SMALL, controller_quorum_fetch_snapshot_max_bytes="64")


def test_broker_alone_follows_as_an_observer_and_finds_every_next_leader() -> None:
    async def story(quorum: SimQuorum) -> None:
        broker = quorum.add(
            9,
            process_roles="broker",
            listeners="PLAINTEXT://n9:9092",
            controller_quorum_voters="",
            controller_quorum_bootstrap_servers="n2:9093,n3:9093",
        )
        await quorum.start()
        await broker.start()
        leader = await quorum.leader()
        assert quorum.node(9).cluster_id == quorum.node(leader).cluster_id
        for value in range(3):
            await write(quorum.node(leader), value + 1)
            await quorum.same_image()
            assert written(quorum.node(9)) == value + 1
            assert not quorum.node(9).metadata.quorum.raft.is_voter
            quorum.kill(leader)
            heir = await quorum.leader(among=lambda i: i != 9)
            await quorum.start(leader)
            leader = heir

    play(story)


def test_observer_counts_for_nothing() -> None:
    async def story(quorum: SimQuorum) -> None:
        broker = quorum.add(
            9,
            process_roles="broker",
            listeners="PLAINTEXT://n9:9092",
            controller_quorum_voters="",
            controller_quorum_bootstrap_servers="n1:9093",
        )
        await quorum.start()
        await broker.start()
        leader = await quorum.leader()
        for other in quorum.ids:
            if other != leader:
                quorum.kill(other)
        await asyncio.sleep(10)
        assert quorum.actives() == []
        assert quorum.nodes[9].node is not None, "a broker serves on while the quorum is away"
        quorum.nodes[9].note_failure()

    play(story)


def test_voter_with_a_new_address_tells_the_leader_and_others_find_it_there() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        moved, third = (i for i in quorum.ids if i != leader)
        quorum.kill(moved)
        quorum.add(moved, listeners=f"CONTROLLER://n{moved}:9999")
        await quorum.start(moved)

        def known() -> bool | None:
            ends = [n.metadata.quorum.voter_endpoints()[moved] for n in quorum.alive.values()]
            wanted = (("CONTROLLER", f"n{moved}", 9999),)
            return True if all(end == wanted for end in ends) else None

        await quorum.until(known, 10, "the address is not known")
        await quorum.same_image()
        quorum.kill(leader)
        heir = await quorum.leader()
        assert heir in (moved, third)
        await write(quorum.node(heir), 17)
        await quorum.same_image()

    play(story)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"voter_id": 2, "voter_directory_id": b"w" * 16}, ErrorCode.VOTER_NOT_FOUND),
        ({"voter_id": 44}, ErrorCode.VOTER_NOT_FOUND),
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 99}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_update_of_no_voter_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        node = quorum.node(leader)
        facts: dict[str, Any] = {
            "cluster_id": node.cluster_id,
            "current_leader_epoch": node.metadata.quorum.raft.epoch,
            "voter_id": 2,
            "voter_directory_id": node.metadata.quorum.raft.voters[2].directory,
            "listeners": [
                messages.UpdateRaftVoterRequestListener(name="CONTROLLER", host="x", port=1)
            ],
        }
        before = node.metadata.quorum.facts
        answer = await ask(quorum, leader, messages.UpdateRaftVoterRequest(**(facts | changes)))
        assert ErrorCode(answer.error_code) is code
        assert node.metadata.quorum.facts == before

    play(story)


def test_every_controller_knows_who_leads_and_the_leader_describes_the_quorum() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        leader = await quorum.leader()
        await quorum.until(
            lambda: True if len(quorum.node(leader).image.controllers) == 3 else None,
            10,
            "the controllers did not register",
        )
        await quorum.same_image()
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=TOPIC,
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        for asked in quorum.ids:
            told = await ask(quorum, asked, DescribeClusterRequest(endpoint_type=2))
            assert told.controller_id == leader
            assert [b.broker_id for b in told.brokers] == [1, 2, 3]
            answer = await ask(quorum, asked, request)
            partition = answer.topics[0].partitions[0]
            if asked != leader:
                assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            assert (partition.leader_id, len(partition.current_voters)) == (leader, 3)
            assert {n.node_id for n in answer.nodes} == {1, 2, 3}
            assert {v.replica_id: v.log_end_offset > 0 for v in partition.current_voters} == {
                1: True,
                2: True,
                3: True,
            }

    play(story)


def test_founding_through_bootstrap_servers_needs_no_ids() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        assert await quorum.leader(within_s=3) == 1
        await write(quorum.node(1), 3)
        await quorum.same_image()
        assert [v.id for v in quorum.node(2).metadata.quorum.raft.voters.values()] == [1, 2, 3]

    play(
        story,
        controller_quorum_voters="",
        controller_quorum_bootstrap_servers="n1:9093,n2:9093,n3:9093",
    )
