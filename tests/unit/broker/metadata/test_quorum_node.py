"""The controller of a node on a simulated disk: what it answered is there after any crash."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scriba.broker.metadata.follower import SLICE
from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.batches import read_batches
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.config import StartError, StorageLost
from scriba.controller.features import SUPPORTED
from scriba.controller.image import TOPIC, ClusterImage, Delta
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.raft.machine import Raft
from scriba.raft.messages import Position
from scriba.records.batch import HEADER_SIZE, control_type, decode_records, walk
from scriba.runtime.loop.pace import Pace
from scriba.runtime.rng import SeededRng
from scriba.runtime.world import RealWorld
from scriba.settings import TopicSettings
from scriba.storage.log import Log
from scriba.testing.sim.world.disk import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimHost, SimWorld
from scriba.wire.messages.admin import (
    DeleteTopicsRequest,
    DeleteTopicState,
)
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
)
from scriba.wire.messages.configs import FeatureUpdateKey, UpdateFeaturesRequest
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from scriba.wire.messages.stored import LeaderChangeMessage, decode_quorum_state
from tests.unit.broker.metadata.quorum_rig import (
    DIRECTORY,
    DIRECTORY_ID,
    Rig,
    simulate,
)

GOLDEN = Path(__file__).with_name("kafka-4.3-metadata")
LOG_DIR = f"{DIRECTORY}/__cluster_metadata-0"
FIRST_LOG = f"{LOG_DIR}/00000000000000000000.log"


ON_OTHER_DISKS = (
    f"{LOG_DIR} belongs to a quorum of the nodes 1 on other disks, and this node is told of no "
    "other controller: restore its own disk, or name the others in "
    "controller.quorum.bootstrap.servers"
)


def control_kinds(data: bytes) -> list[str]:
    kinds = []
    for at, header in walk(data):
        if header.is_control:
            for record in decode_records(memoryview(data)[at : at + header.size]):
                kind = control_type(record.key)
                assert kind is not None
                kinds.append(kind.name)
    return kinds


def test_first_start_writes_the_epoch_then_who_leads_and_votes() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert rig.node.image.features["kraft.version"] == 1
            assert rig.node.image.brokers[1].active
            await rig.stop()

        await live(body)
        files = host.volume.files()
        state = decode_quorum_state(files[f"{LOG_DIR}/quorum-state"])
        assert (state.leader_id, state.leader_epoch, state.voted_id) == (1, 1, -1)
        data = files[FIRST_LOG]
        assert control_kinds(data) == ["LEADER_CHANGE", "KRAFT_VERSION", "KRAFT_VOTERS"]
        first = decode_records(data)[0]
        change = LeaderChangeMessage.decode(first.value or b"", 0)
        assert (change.leader_id, [v.voter_id for v in change.voters]) == (1, [1])
        await live(body)
        state = decode_quorum_state(host.volume.files()[f"{LOG_DIR}/quorum-state"])
        assert state.leader_epoch == 2
        assert control_kinds(host.volume.files()[FIRST_LOG])[3:] == ["LEADER_CHANGE"]

    simulate(story)


def test_new_address_of_the_controller_is_written_down() -> None:
    listeners = ("PLAINTEXT://localhost:9092", "CONTROLLER://localhost:9093")

    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld, **options: Any) -> Any:
            rig = await Rig(world, **options).start()
            voters = rig.node.quorum.facts.voters
            await rig.stop()
            return voters

        assert (await live(body)).voters[0].endpoints == []

        async def moved(world: ProcessWorld) -> Any:
            return await body(world, listeners=listeners, controller_listener_names=("CONTROLLER",))

        found = (await live(moved)).voters[0].endpoints
        assert [(e.name, e.host, e.port) for e in found] == [("CONTROLLER", "localhost", 9093)]
        kinds = control_kinds(host.volume.files()[FIRST_LOG])
        assert kinds[3:] == ["LEADER_CHANGE", "KRAFT_VOTERS"]
        await live(moved)
        assert control_kinds(host.volume.files()[FIRST_LOG])[5:] == ["LEADER_CHANGE"]

    simulate(story)


def test_answer_means_that_the_image_has_it_and_the_subscribers_know() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            assert await rig.create("t", 3, retention_ms="7") is ErrorCode.NONE
            topic = rig.node.image.topics_by_name["t"]
            assert list(rig.deltas[-1].created) == [topic.id]
            assert rig.deltas[-1].partitions[topic.id] == {0: None, 1: None, 2: None}
            assert rig.node.image.config(TOPIC, "t") == {"retention.ms": "7"}
            assert rig.node.applied.value == rig.node.image.end_offset
            ends = [delta.end_offset for delta in rig.deltas]
            assert ends == sorted(ends)
            assert await rig.create("t") is ErrorCode.TOPIC_ALREADY_EXISTS

        await live(body)

    simulate(story)


def test_many_callers_at_once_share_flushes_and_all_get_their_answer() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            codes = await asyncio.gather(*(rig.create(f"t{i}") for i in range(50)))
            assert set(codes) == {ErrorCode.NONE}
            assert len(rig.node.image.topics_by_name) == 50
            assert len(rig.deltas) < 10, "they were committed together"

        await live(body)

    simulate(story)


def test_two_who_create_the_same_topic_at_once_one_wins() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            codes = await asyncio.gather(*(rig.create("t") for _ in range(5)))
            assert codes.count(ErrorCode.NONE) == 1
            assert codes.count(ErrorCode.TOPIC_ALREADY_EXISTS) == 4

        await live(body)

    simulate(story)


def storm(seed: int) -> None:
    """Requests, kills and power cuts; fails when an answer turns out to be untrue."""
    rng = SeededRng(seed)
    kept: set[str] = set()
    gone: set[str] = set()
    open_ended: set[str] = set()
    epochs: list[int] = []
    ids: list[int] = []

    async def work(rig: Rig, round_: int) -> None:
        for i in range(100):
            name = f"t{round_}-{i}"
            open_ended.add(name)
            if await rig.create(name, 1 + rng.below(3)) is ErrorCode.NONE:
                kept.add(name)
                open_ended.discard(name)
            if kept and rng.chance(0.3):
                victim = sorted(kept)[rng.below(len(kept))]
                kept.discard(victim)
                open_ended.add(victim)
                state = DeleteTopicState(name=victim)
                await rig.node.call(DeleteTopicsRequest(topics=[state]))
                open_ended.discard(victim)
                gone.add(victim)
            if rng.chance(0.2):
                block = await rig.node.call(
                    AllocateProducerIdsRequest(broker_id=1, broker_epoch=rig.epoch)
                )
                ids.append(block.producer_id_start)
            await rig.node.tick(rig.world.clock.now())

    async def main() -> None:
        for round_ in range(5):
            started = asyncio.Event()

            async def body(
                world: ProcessWorld, round_: int = round_, started: asyncio.Event = started
            ) -> None:
                rig = Rig(
                    world,
                    metadata_log_max_record_bytes_between_snapshots=600,
                    metadata_max_retention_bytes=6000,
                    metadata_log_segment_bytes=9000,
                )
                await rig.start()
                topics = set(rig.node.image.topics_by_name)
                assert kept <= topics
                assert not topics & gone
                assert topics <= kept | open_ended
                epochs.append(rig.node.image.epoch)
                started.set()
                await work(rig, round_)

            process = host.start(body)
            waiting = asyncio.ensure_future(started.wait())
            await asyncio.wait([waiting, process.task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if process.task.done():
                process.task.result()
            await asyncio.sleep(rng.between(0.001, 0.4))
            if rng.chance(0.5):
                process.kill()
            else:
                host.power_cut()

    sim = SimWorld(seed, disk_faults=DiskFaults(cold=0.1))
    host = sim.host("node")
    host.start(lambda world: make_dir(world))
    sim.run(main())
    assert epochs == sorted(set(epochs)), "every start leads a new epoch"
    assert ids == sorted(set(ids)), "no producer id is given twice"


@pytest.mark.parametrize("seed", range(10))
def test_what_was_answered_survives_kills_and_power_cuts(seed: int) -> None:
    storm(seed)


def test_answer_before_the_flush_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: MetadataQuorum) -> None:
        self._flushing = None
        self.high_watermark.advance(self.log.end_offset)

    monkeypatch.setattr(MetadataQuorum, "_flush", hasty)
    monkeypatch.setattr(Raft, "snapshot_taken", lambda self, snapshot: None)

    def storms() -> None:
        for seed in range(30):
            storm(seed)

    with pytest.raises((AssertionError, StartError)):
        storms()


async def make_dir(world: ProcessWorld) -> None:
    world.disk.mkdir(DIRECTORY)
    await world.disk.sync_dir("/")


def test_snapshot_and_what_follows_it_give_the_same_image() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> ClusterImage:
            rig = await Rig(world, metadata_log_max_record_bytes_between_snapshots=500).start()
            for i in range(20):
                await rig.create(f"t{i}", 5, retention_ms=str(i + 1))
            await rig.node.tick(world.clock.now())
            await settled(rig)
            await rig.create("after the snapshot".replace(" ", "-"))
            image = rig.node.image.copy()
            await rig.stop()
            return image

        before = await live(body)
        names = [path for path in host.volume.files() if path.endswith(".checkpoint")]
        assert names

        async def again(world: ProcessWorld) -> ClusterImage:
            rig = Rig(world)
            await rig.node.start()
            await rig.node.applied.reach(rig.node.quorum.log.end_offset)
            return rig.node.image.copy()

        assert await live(again) == before

    simulate(story)


async def settled(rig: Rig) -> None:
    while rig.node.follower._snapshotting is not None:
        await asyncio.wait([rig.node.follower._snapshotting])


def test_a_start_that_had_much_to_read_leaves_a_snapshot_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scriba.broker.metadata.follower.LONG_REPLAY_BYTES", 3000)

    async def story(host: SimHost, live: Any) -> None:
        async def life(world: ProcessWorld, new: int) -> tuple[int, int]:
            rig = await Rig(world).start()
            for i in range(new):
                await rig.create(f"t{i}", 5)
            await rig.node.tick(world.clock.now())
            await settled(rig)
            topics = len(rig.node.image.topics_by_name)
            await rig.stop()
            return topics, len(snapshots.find(world.disk, LOG_DIR))

        assert await live(lambda world: life(world, 20)) == (20, 0)
        assert await live(lambda world: life(world, 0)) == (20, 1)
        assert await live(lambda world: life(world, 0)) == (20, 1)

    simulate(story)


def test_log_below_old_snapshots_goes_and_the_newest_snapshot_stays() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> ClusterImage:
            rig = await Rig(
                world,
                metadata_log_max_record_bytes_between_snapshots=1000,
                metadata_max_retention_bytes=6000,
                metadata_log_segment_bytes=2000,
            ).start()
            for i in range(60):
                await rig.create(f"t{i}", 3)
                await rig.node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=f"t{i}")]))
                await rig.node.tick(world.clock.now())
                await settled(rig)
            image = rig.node.image.copy()
            await rig.stop()
            return image

        before = await live(body)
        files = host.volume.files()
        found = sorted(path for path in files if path.endswith(".checkpoint"))
        assert 1 <= len(found) < 6
        assert FIRST_LOG not in files

        async def again(world: ProcessWorld) -> ClusterImage:
            rig = await Rig(world).start()
            return rig.node.image

        after = await live(again)
        assert after.topics_by_id == before.topics_by_id
        assert after.end_offset > before.end_offset

    simulate(story)


@pytest.mark.parametrize("delay_ms", [0, 10_000_000])
def test_segments_are_as_large_and_their_files_stay_as_long_as_the_internal_settings_say(
    delay_ms: int,
) -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> list[int]:
            rig = await Rig(
                world,
                metadata_log_max_record_bytes_between_snapshots=1000,
                metadata_max_retention_bytes=6000,
                internal_metadata_log_segment_bytes=2000,
                internal_metadata_delete_delay_millis=delay_ms,
            ).start()
            for i in range(60):
                await rig.create(f"t{i}", 3)
                await rig.node.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=f"t{i}")]))
                await rig.node.tick(world.clock.now())
                await settled(rig)
            for _ in range(2):  # what goes in one pass is removed in the next
                log, committed = rig.node.quorum.log, rig.node.quorum.high_watermark.value
                await log.truncation.retention(world.clock.now(), committed, by_age=False)
            return [len(each) for path, each in host.volume.files().items() if ".log" in path]

        sizes = await live(body)
        assert max(sizes) <= 2000
        deleted = [path for path in host.volume.files() if path.endswith(".deleted")]
        assert bool(deleted) == (delay_ms > 0)

    simulate(story)


def test_change_that_takes_more_than_a_batch_may_is_refused_with_the_limit() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world, internal_metadata_max_batch_size_in_bytes=3000).start()
            assert await rig.create("small", 3) is ErrorCode.NONE
            with pytest.raises(KafkaError, match="one may take 3000; ask for it in parts"):
                await rig.create("large", 200)
            assert "large" not in rig.node.image.topics_by_name

        await live(body)

    simulate(story)


def test_damaged_snapshot_is_passed_over_and_the_log_takes_its_place() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world, metadata_log_max_record_bytes_between_snapshots=500).start()
            for i in range(20):
                await rig.create(f"t{i}")
                await rig.node.tick(world.clock.now())
                await settled(rig)
            await rig.stop()

        await live(body)
        found = sorted(path for path in host.volume.files() if path.endswith(".checkpoint"))
        assert len(found) > 1
        for path in found:
            host.volume.flip_bit(path, low=100)

        async def again(world: ProcessWorld) -> set[str]:
            rig = await Rig(world).start()
            return set(rig.node.image.topics_by_name)

        assert await live(again) == {f"t{i}" for i in range(20)}

    simulate(story)


def test_no_readable_snapshot_and_no_log_before_it_is_a_clear_error() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(
                world,
                metadata_log_max_record_bytes_between_snapshots=1000,
                metadata_max_retention_bytes=3000,
                metadata_log_segment_bytes=2000,
            ).start()
            for i in range(60):
                await rig.create(f"t{i}", 3)
                await rig.node.tick(world.clock.now())
                await settled(rig)
            await rig.stop()

        await live(body)
        for path in host.volume.files():
            if path.endswith(".checkpoint"):
                host.volume.flip_bit(path, low=100)

        async def again(world: ProcessWorld) -> None:
            with pytest.raises(StartError, match="no readable snapshot"):
                await Rig(world).node.start()

        await live(again)

    simulate(story)


def test_snapshot_cut_short_or_half_written_is_never_taken_for_one() -> None:
    async def body(world: ProcessWorld) -> None:
        rig = await Rig(world).start()
        await rig.create("t", 300)
        await rig.node.follower._snapshot(world.clock.now())
        position = snapshots.find(world.disk, LOG_DIR)[0]
        path = f"{LOG_DIR}/{snapshots.file_name(position)}"
        whole = world.disk.read(path)
        found = await snapshots.read(world.disk, LOG_DIR, position, Pace(world.clock))
        assert found.image == rig.node.image
        for size in (0, 10, 61, 200, len(whole) - 75, len(whole) - 1):
            await world.disk.write_atomic(path, whole[:size])
            with pytest.raises(ParseError):
                await snapshots.read(world.disk, LOG_DIR, position, Pace(world.clock))
        await world.disk.write_atomic(path, whole + whole[-75:])
        with pytest.raises(ParseError):
            await snapshots.read(world.disk, LOG_DIR, position, Pace(world.clock))
        await world.disk.write_atomic(f"{path}.part", b"half")
        snapshots.remove_parts(world.disk, LOG_DIR)
        assert not world.disk.exists(f"{path}.part")

    async def story(host: SimHost, live: Any) -> None:
        await live(body)

    simulate(story)


def test_torn_tail_is_cut_off() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            await rig.create("t")

        await live(body)
        node = host.volume.find(FIRST_LOG)
        node.content += b"\0\0\0\0\0\0\0\0\0\0"  # type: ignore[union-attr]

        async def again(world: ProcessWorld) -> set[str]:
            rig = await Rig(world).start()
            assert await rig.create("u") is ErrorCode.NONE
            return set(rig.node.image.topics_by_name)

        assert await live(again) == {"t", "u"}

    simulate(story)


def test_damage_in_a_cleanly_closed_log_stops_the_start() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            await rig.create("t")
            await rig.create("u")
            await rig.stop()

        await live(body)
        third = [at for at, _ in walk(host.volume.files()[FIRST_LOG])][2] + HEADER_SIZE
        host.volume.flip_bit(FIRST_LOG, low=third, high=third + 1)

        async def again(world: ProcessWorld) -> None:
            with pytest.raises(StartError, match="damaged"):
                await Rig(world).node.start(clean=True)

        await live(again)

    simulate(story)


def test_disk_of_another_node_and_damaged_quorum_state_are_refused() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            await rig.stop()

        await live(body)

        async def foreign(world: ProcessWorld) -> None:
            with pytest.raises(StartError, match=ON_OTHER_DISKS):
                await Rig(world, directory_id=b"another disk....").node.start()

        await live(foreign)

        async def damaged(world: ProcessWorld) -> None:
            await world.disk.write_atomic(f"{LOG_DIR}/quorum-state", b"{")
            with pytest.raises(StartError, match="quorum-state"):
                await Rig(world).node.start()

        await live(damaged)

    simulate(story)


def test_failed_flush_answers_nobody_and_stops_the_node() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            host.disk_faults.fail_sync = 1.0
            with pytest.raises(KafkaError) as refused:
                await rig.create("t")
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "t" not in rig.node.image.topics_by_name
            with pytest.raises(StorageLost, match="the metadata log failed"):
                await rig.tasks.watch()

        await live(body)

    simulate(story)


def test_full_disk_refuses_the_request_and_keeps_the_state() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            host.disk_faults.capacity = host.volume.used
            with pytest.raises(KafkaError) as refused:
                await rig.create("t")
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            host.disk_faults.capacity = 1 << 40
            assert await rig.create("t") is ErrorCode.NONE

        await live(body)

    simulate(story)


def test_long_request_is_one_batch_and_nobody_sees_half_of_it() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            seen: set[int] = set()

            async def watch() -> None:
                for _ in range(80):
                    topic = rig.node.image.topics_by_name.get("wide")
                    seen.add(len(topic.partitions) if topic else 0)
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            small = asyncio.ensure_future(rig.create("small"))
            assert await rig.create("wide", 10 * SLICE) is ErrorCode.NONE
            await watching
            assert await small is ErrorCode.NONE
            assert seen <= {0, 10 * SLICE}
            await rig.beat(want_fence=True)
            leaders = {p.leader for p in rig.node.image.topics_by_name["wide"].partitions.values()}
            assert leaders == {-1}
            await rig.beat()
            leaders = {p.leader for p in rig.node.image.topics_by_name["wide"].partitions.values()}
            assert leaders == {1}
            await rig.stop()

        await live(body)
        largest = max(header.count for _, header in walk(host.volume.files()[FIRST_LOG]))
        assert largest == 10 * SLICE + 1

    simulate(story)


def test_request_during_a_long_one_waits_its_turn_and_sees_its_outcome() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            wide = asyncio.ensure_future(rig.create("wide", 10 * SLICE))
            await asyncio.sleep(0)
            assert await rig.create("wide") is ErrorCode.TOPIC_ALREADY_EXISTS
            assert await wide is ErrorCode.NONE

        await live(body)

    simulate(story)


def test_long_request_ends_even_if_its_caller_goes() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            wide = asyncio.ensure_future(rig.create("wide", 10 * SLICE))
            for _ in range(15):
                await asyncio.sleep(0)
            wide.cancel()
            assert await rig.create("wide") is ErrorCode.TOPIC_ALREADY_EXISTS
            assert len(rig.node.image.topics_by_name["wide"].partitions) == 10 * SLICE
            assert rig.node.active is not None
            assert rig.node.active.machine.image == rig.node.image

        await live(body)

    simulate(story)


def test_idle_controller_writes_empty_records_and_silent_broker_is_fenced() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            before = rig.node.image.end_offset
            for _ in range(30):
                await asyncio.sleep(0.5)
                await rig.node.tick(world.clock.now())
            assert rig.node.image.end_offset >= before + 20
            assert rig.node.image.brokers[1].fenced
            with pytest.raises(KafkaError):
                await rig.node.call(BrokerHeartbeatRequest(broker_id=1, broker_epoch=-1))
            assert (await rig.beat()).is_fenced is False

        await live(body)

    simulate(story)


def test_feature_of_a_newer_release_is_raised_on_existing_data_and_kept() -> None:
    earlier = {name: SUPPORTED[name] for name in ("metadata.version", "kraft.version")}

    async def story(host: SimHost, live: Any) -> None:
        async def old(world: ProcessWorld) -> None:
            rig = await Rig(world, supported=earlier).start()
            await rig.create("kept", 2)
            await rig.stop()

        async def new(world: ProcessWorld) -> int:
            rig = await Rig(world).start()
            level = rig.node.image.features.get("transaction.version", 0)
            update = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
            answer = await rig.node.call(UpdateFeaturesRequest(feature_updates=[update]))
            assert answer.error_code == ErrorCode.NONE
            assert rig.node.image.features["transaction.version"] == 2
            assert len(rig.node.image.topics_by_name["kept"].partitions) == 2
            await rig.stop()
            return level

        async def old_again(world: ProcessWorld) -> None:
            with pytest.raises(StartError, match=r"transaction\.version"):
                await Rig(world, supported=earlier).node.start()

        await live(old)
        assert await live(new) == 0
        assert await live(new) == 2
        await live(old_again)

    simulate(story)


def test_quorum_describes_itself() -> None:
    async def story(host: SimHost, live: Any) -> None:
        async def body(world: ProcessWorld) -> None:
            rig = await Rig(world).start()
            partitions = [
                DescribeQuorumRequestPartitionData(partition_index=0),
                DescribeQuorumRequestPartitionData(partition_index=1),
            ]
            topic = DescribeQuorumRequestTopicData(
                topic_name="__cluster_metadata", partitions=partitions
            )
            response = await rig.node.call(DescribeQuorumRequest(topics=[topic]))
            good, bad = response.topics[0].partitions
            assert (good.leader_id, good.leader_epoch) == (1, 1)
            assert good.high_watermark == rig.node.image.end_offset
            voter = good.current_voters[0]
            assert (voter.replica_id, voter.replica_directory_id) == (1, DIRECTORY_ID)
            assert voter.log_end_offset == rig.node.image.end_offset
            assert bad.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        await live(body)

    simulate(story)


async def test_log_and_snapshot_that_kafka_wrote_fold_into_the_same_image(tmp_path: Path) -> None:
    world = RealWorld()
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    for file in GOLDEN.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    store = Log.open(
        world.disk,
        str(directory),
        "__cluster_metadata",
        0,
        bytes(15) + b"\x01",
        TopicSettings(),
        world.clock.now(),
    )
    from_log = ClusterImage()
    delta = Delta()
    for batch in await read_batches(store, 0, snapshots.QuorumFacts(0, None)):
        from_log.replay(batch.records, batch.base_offset, batch.epoch, delta)
        from_log.advance(batch.end_offset, batch.epoch, delta)
    position = snapshots.find(world.disk, str(directory))[0]
    assert position == Position(1, 34) == (from_log.epoch, from_log.end_offset)
    snapshot = await snapshots.read(world.disk, str(directory), position, Pace(world.clock))
    assert snapshot.quorum.kraft_version == 1
    assert snapshot.quorum.voters is not None
    delta.features.clear()
    from_log.set_feature("kraft.version", 1, delta)
    assert from_log == snapshot.image
    assert list(from_log.topics_by_name) == ["a.b"]
    assert from_log.config(TOPIC, "a.b") == {"retention.ms": "1000"}
    assert decode_quorum_state(world.disk.read(str(directory / "quorum-state"))).leader_epoch == 1
    await store.close()
