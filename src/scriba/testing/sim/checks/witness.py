"""Looks into all nodes of a simulated cluster at one moment after the other, and tells the checkers
of replicas and quorum (`history.replication`) what it sees.

This is the one place that knows where in a node these facts are. Logs are read from the hosts'
disks, as a process would read them.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from scriba.broker.partitions.partition import Partition
from scriba.controller.image import ClusterImage, PartitionImage
from scriba.errors import KafkaError, ParseError
from scriba.raft.machine import Raft
from scriba.raft.roles import Role
from scriba.records.batch import decode_records, walk
from scriba.testing.history.findings import Where, place
from scriba.testing.history.replication import (
    Batch,
    Leading,
    Log,
    Position,
    Quorum,
    Replication,
)
from scriba.testing.sim.checks.placements import Placements
from scriba.testing.sim.cluster import DATA, SimCluster
from scriba.testing.sim.node import Node
from scriba.testing.sim.world.volume import Dir, Inode
from scriba.wire.messages.stored import BrokerRegistrationChangeRecord, decode_metadata_record
from scriba.wire.schema import Message

LOOK_S: Final = 0.01
READ_EVERY: Final = 40
"""Looks from one reading of all logs to the next."""
SILENT_MS: Final = 900
"""A little less than the time for which a broker may be silent and is waited for."""
METADATA: Final = f"{DATA}/__cluster_metadata-0"
UNCLEAN: Final = "unclean_election"
"""The label of an event that names the partitions which may have lost records by it."""
TRUNCATED: Final = "log_truncated_below_high_watermark"
"""The same of one partition, which it is about."""


class Witness:
    def __init__(self, cluster: SimCluster, excused: bool = False) -> None:
        """`excused`: what an election was flagged for may be lost."""
        self._excused = excused
        self.replication = Replication()
        self.quorum = Quorum()
        self.looks = 0
        self.follow_voters = False
        """Whether the voters change, and are looked at."""
        self.placements: Placements | None = None
        """Where replicas are, if they move and somebody wants to know."""
        self._cluster = cluster
        self.tell: Callable[..., None] = lambda *event: None
        """Told of leaders and in-sync replicas as they change."""
        self._silent: dict[int, float] = {}
        """When each node was last silent towards the leader of the quorum."""
        self._called: dict[bytes, str] = {}
        """What topics are called: one that was made again under its name is another."""
        self._told: dict[Where, tuple[int, int, tuple[int, ...]]] = {}
        self._parsed: dict[tuple[int, str], tuple[int, int, list[Batch]]] = {}
        self._heard: dict[tuple[int, int], int] = {}
        """(node, its life) -> the number of its last event that was heard."""

    @property
    def violations(self) -> list[str]:
        moves = [] if self.placements is None else self.placements.moves.violations
        return [*self.quorum.violations, *self.replication.violations, *moves]

    async def watch(self) -> None:
        while True:
            self.look()
            if self.looks % READ_EVERY == 0:
                self.read()
            await asyncio.sleep(LOOK_S)

    # ---- who leads ----

    def look(self) -> None:
        self.looks += 1
        for at, node in self._cluster.running():
            raft = raft_of(node)
            if raft is not None:
                position = self._position(at, raft)
                if position.leads and raft.epoch not in self.quorum.leaders:
                    self.tell(f"quorum: {at} leads epoch {raft.epoch}")
                self.quorum.at(position)
                if self.follow_voters and position.leads:
                    self._compare_voters(at, node, raft)
            self._hear(at, node)
            for seen, partition in self.leadings(at, node):
                for joined in self.replication.leads(seen):
                    self._see_joined(seen, partition, joined)
                self._tell_of(seen)
        self._look_at_snapshots()
        self._listen()

    def _see_joined(self, seen: Leading, partition: Partition, broker: int) -> None:
        image = self.newest_image()
        committed = None if image is None else _in_image(image, partition)
        if image is None or committed is None or committed.leader_epoch != seen.epoch:
            return
        follower = self._replica(broker, image, partition)
        if broker in committed.isr and follower is not None:
            self.replication.joined(seen, broker, follower.log.end_offset)

    def _listen(self) -> None:
        leading = self.quorum_leader()
        heard: set[int] = set()
        if leading is not None:
            node = self._cluster.nodes[leading[0]].node
            progress = None if node is None or (raft := raft_of(node)) is None else raft.progress
            if node is not None and progress is not None:
                since = node.world.clock.mono_ms() - SILENT_MS
                replicas = (*progress.voters.values(), *progress.observers.values())
                heard = {each.voter.id for each in replicas if each.last_contact >= since}
                heard.add(leading[0])
        for at in self._cluster.ids:
            if at not in heard:
                self._silent[at] = self._cluster.sim.loop.true_time()

    def heard_for(self, node_id: int) -> float:
        """Seconds in which a node was never silent towards the quorum's leader."""
        return self._cluster.sim.loop.true_time() - self._silent.get(node_id, 0.0)

    def _tell_of(self, seen: Leading) -> None:
        told = (seen.epoch, seen.partition_epoch, seen.isr)
        if self._told.get(seen.where, (-1,)) < told:
            self._told[seen.where] = told
            members = ",".join(map(str, seen.isr))
            self.tell(f"{place(seen.where)}: {seen.broker} leads epoch {seen.epoch}, ISR {members}")

    def _position(self, at: int, raft: Raft) -> Position:
        life, progress = self._cluster.nodes[at].lives, raft.progress
        start = -1 if progress is None else progress.start_offset
        leads = raft.role is Role.LEADER
        return Position(at, life, raft.epoch, raft.high_watermark, leads, start)

    def _compare_voters(self, at: int, node: Node, raft: Raft) -> None:
        """Majorities of what is committed and of what counts must meet. A leader knows what is
        committed once something of its own epoch is."""
        if raft.progress is None or raft.high_watermark <= raft.progress.start_offset:
            return
        record = node.metadata.quorum.history.at(raft.high_watermark).voters
        if record is not None:
            committed = {(v.voter_id, v.voter_directory_id) for v in record.voters}
            counted = {(voter.id, voter.directory) for voter in raft.voters.values()}
            self.quorum.voters(at, raft.epoch, committed, counted)

    def voters(self) -> dict[int, tuple[int, ...]]:
        """Who votes, as each node that runs has it."""
        return {
            at: tuple(sorted(raft.voters))
            for at, node in self._cluster.running()
            if (raft := raft_of(node)) is not None
        }

    def quorum_leader(self) -> tuple[int, int] | None:
        """The node that leads the newest epoch, and that epoch."""
        leaders = [
            (raft.epoch, at)
            for at, node in self._cluster.running()
            if (raft := raft_of(node)) is not None and raft.role is Role.LEADER
        ]
        if not leaders:
            return None
        epoch, at = max(leaders)
        return at, epoch

    def fenced_since(self, end_offset: int) -> list[int]:
        """Brokers that were fenced by records of the metadata log from an offset on."""
        leading = self.quorum_leader()
        if leading is None:
            return []
        return [
            change.broker_id
            for _, change in self._metadata(leading[0], end_offset)
            if isinstance(change, BrokerRegistrationChangeRecord) and change.fenced > 0
        ]

    def _metadata(self, at: int, from_offset: int) -> Iterator[tuple[int, Message]]:
        """Records of the metadata log that a node has, from the batch on that begins there."""
        for name in self._names(at, METADATA, ".log"):
            file = self._cluster.hosts[at].volume.find(f"{METADATA}/{name}")
            assert isinstance(file, Inode)
            content = bytes(file.content)
            for start, header in walk(content):
                if header.base_offset >= from_offset and not header.is_control:
                    for record in decode_records(content[start : start + header.size]):
                        yield record.offset, decode_metadata_record(record.value or b"")

    def _read_placements(self, placements: Placements) -> None:
        """All that was committed since, from the node that knows most of what is."""
        high_watermark, at = max(
            (
                (raft.high_watermark, at)
                for at, node in self._cluster.running()
                if (raft := raft_of(node)) is not None
            ),
            default=(-1, -1),
        )
        if at < 0:
            return
        for offset, record in self._metadata(at, placements.end_offset):
            if offset >= high_watermark:
                return
            placements.follow(offset, record)

    def _hear(self, at: int, node: Node) -> None:
        life = self._cluster.nodes[at].lives
        last = self._heard.get((at, life), 0)
        for event in node.events.since(last):
            self._heard[at, life] = event.number
            if event.kind.label == TRUNCATED:
                self._flag(event.about)
            elif event.kind.label == UNCLEAN:
                listed, _, more = event.text.partition(": ")[2].partition(" and ")
                for name in listed.split(", "):
                    self._flag(name)
                if more:  # not all are named, so it may be any
                    for where in self._told:
                        self._flag(place(where))

    def _flag(self, partition: str) -> None:
        """An event names the topic as clients do: it may be any that was made under that name."""
        topic, _, index = partition.rpartition("-")
        name = topic.partition("~")[0]
        for each in dict.fromkeys((name, *self._called.values())):
            if each.partition("~")[0] == name:
                self.replication.flagged((each, int(index)), self._excused)

    def newest_image(self) -> ClusterImage | None:
        images = [image_of(node) for _, node in self._cluster.running()]
        known = [image for image in images if image is not None]
        return max(known, key=lambda image: image.end_offset, default=None)

    def committed_image(self) -> ClusterImage | None:
        """What the leader of the quorum knows to be committed; None before it knows all of it.

        Who has just started begins with its snapshot, and after a blackout everybody has: the
        newest image may then be one without most topics.
        """
        leading, newest = self.quorum_leader(), self.newest_image()
        if leading is None or newest is None or newest.epoch != leading[1]:
            return None
        return newest

    def leadings(self, node_id: int, node: Node) -> Iterator[tuple[Leading, Partition]]:
        """All partitions that a node takes itself for the leader of."""
        for partition in getattr(node, "replicas", ()):
            leader = partition.leader
            if leader is not None:
                placement = partition.placement
                voters = len(leader.replicas) if placement is None else placement.voter_count
                needed = min(partition.settings.min_insync_replicas, voters, len(leader.replicas))
                yield (
                    Leading(
                        (self._name_of(partition), partition.index),
                        node_id,
                        leader.leader_epoch,
                        leader.partition_epoch,
                        partition.high_watermark.value,
                        tuple(leader.isr),
                        needed,
                        leader.epoch_start_offset,
                    ),
                    partition,
                )

    def _name_of(self, partition: Partition) -> str:
        name = self._called.get(partition.topic_id)
        if name is None:
            known = sum(each.partition("~")[0] == partition.topic for each in self._called.values())
            name = f"{partition.topic}~{known + 1}" if known else partition.topic
            self._called[partition.topic_id] = name
        return name

    # ---- what the logs hold ----

    def read(self) -> None:
        """Reads all logs and holds them against each other."""
        self._read_quorum()
        if self.placements is not None:
            self._read_placements(self.placements)
        newest: dict[Where, tuple[Leading, Partition]] = {}
        for at, node in self._cluster.running():
            for seen, partition in self.leadings(at, node):
                known = newest.get(seen.where)
                if known is None or known[0].epoch < seen.epoch:
                    newest[seen.where] = (seen, partition)
        image = self.newest_image()
        for seen, partition in newest.values():
            log = self.log_of(seen.broker, partition)
            self.replication.leader_log(seen, log)
            committed = None if image is None else _in_image(image, partition)
            if image is None or committed is None or committed.leader_epoch != seen.epoch:
                continue
            for broker in committed.isr:
                follower = self._replica(broker, image, partition)
                if broker in seen.isr and broker != seen.broker and follower is not None:
                    self.replication.in_sync(seen, log, broker, self.log_of(broker, follower))

    def _replica(self, broker: int, image: ClusterImage, of: Partition) -> Partition | None:
        """A broker's replica, if it runs as the one that the image knows."""
        for at, node in self._cluster.running():
            known = image.brokers.get(broker)
            if at == broker and known is not None and not known.fenced:
                if known.epoch != node.broker_epoch or not hasattr(node, "replicas"):
                    return None
                for each in node.replicas:
                    if (each.topic_id, each.index) == (of.topic_id, of.index):
                        return each
        return None

    def log_of(self, node_id: int, partition: Partition) -> Log:
        batches = self.batches(node_id, partition.log.directory)
        start = batches[0].base_offset if batches else partition.log.start_offset
        return Log(start, batches, "compact" in partition.settings.cleanup_policy)

    def _read_quorum(self) -> None:
        logs: dict[int, Log] = {}
        for at in self._cluster.ids:
            batches = self.batches(at, METADATA)
            logs[at] = Log(batches[0].base_offset if batches else 0, batches)
        committed = {}
        for at, node in self._cluster.running():
            raft = raft_of(node)
            if raft is not None:
                committed[at] = raft.high_watermark
        self.quorum.logs(logs, committed)
        for at in self._cluster.ids:
            for end_offset, epoch in self._snapshots(at):
                self.quorum.snapshot(at, end_offset, epoch)

    def _look_at_snapshots(self) -> None:
        for at, node in self._cluster.running():
            if raft_of(node) is not None:
                for end_offset, _ in self._snapshots(at):
                    self.quorum.snapshot_now(at, end_offset)

    def _snapshots(self, node_id: int) -> Iterator[tuple[int, int]]:
        """(end offset, epoch) of each snapshot of the metadata that a node has."""
        for name in self._names(node_id, METADATA, ".checkpoint"):
            end_offset, epoch = name.removesuffix(".checkpoint").split("-")
            yield int(end_offset), int(epoch)

    def batches(self, node_id: int, directory: str) -> list[Batch]:
        found: list[Batch] = []
        for name in self._names(node_id, directory, ".log"):
            found += self._parse(node_id, f"{directory}/{name}")
        return found

    def _names(self, node_id: int, directory: str, suffix: str) -> list[str]:
        node = self._cluster.hosts[node_id].volume.find(directory)
        names = node.entries if isinstance(node, Dir) else {}
        return sorted(name for name in names if name.endswith(suffix) and name[:20].isdecimal())

    def _parse(self, node_id: int, path: str) -> list[Batch]:
        file = self._cluster.hosts[node_id].volume.find(path)
        assert isinstance(file, Inode)
        content = bytes(file.content)
        size, crc = len(content), zlib.crc32(content)
        known = self._parsed.get((node_id, path))
        if known is None or known[:2] != (size, crc):
            known = self._parsed[node_id, path] = (size, crc, list(_batches(content)))
        return known[2]

    # ---- the end ----

    def unsettled(self) -> str:
        """What keeps the cluster from being whole: all up and agreed, all voters in sync."""
        images: list[ClusterImage] = []
        for at in self._cluster.ids:
            if not self._cluster.nodes[at].is_up:
                return f"{at} is not up"
        for at, node in self._cluster.running():
            image = image_of(node)
            if image is None:
                return f"{at} has no metadata"
            images.append(image)
        if len({image.end_offset for image in images}) > 1:
            ends = [image.end_offset for image in images]
            return f"metadata is known up to {ends}"
        if (leader := self.quorum_leader()) is None:
            return "nobody leads the quorum"
        for at, node in self._cluster.running():
            raft = raft_of(node)
            if raft is None or raft.epoch != leader[1]:
                return f"{at} does not know that {leader[0]} leads epoch {leader[1]} of the quorum"
        for broker in images[0].brokers.values():
            if broker.fenced:
                return f"broker {broker.id} is fenced"
        for topic in images[0].topics_by_id.values():
            observing = images[0].observing(images[0].placement(topic.name))
            for index, partition in topic.partitions.items():
                voters = set(partition.replicas) - observing
                if set(partition.isr) != voters or partition.leader < 0:
                    return (
                        f"{place((topic.name, index))} is led by {partition.leader}, of replicas "
                        f"{list(partition.replicas)} are in sync {list(partition.isr)}"
                    )
                if partition.is_reassigning:
                    return f"{place((topic.name, index))} is on its way to {partition.target}"
        return ""

    def finish(self) -> None:
        """A last look, when all is committed that ever will be."""
        self.look()
        self.read()
        self.quorum.finish()
        if self.placements is not None:
            self.placements.moves.finish()

    def compare_replicas(self) -> None:
        """At rest all replicas of a partition have the same log, committed to its end."""
        self.finish()
        image = self.newest_image()
        if image is None:
            return
        for at, node in self._cluster.running():
            for seen, partition in self.leadings(at, node):
                log = self.log_of(at, partition)
                if seen.high_watermark != log.end_offset:
                    self.replication.violation(
                        f"{place(seen.where)}: at rest, the high watermark is "
                        f"{seen.high_watermark}, the log ends at {log.end_offset}"
                    )
                whole = seen._replace(high_watermark=log.end_offset)
                observing = image.observing(image.placement(partition.topic))
                for broker in (*seen.isr, *sorted(observing)):
                    follower = self._replica(broker, image, partition)
                    if follower is not None:
                        self.replication.in_sync(whole, log, broker, self.log_of(broker, follower))


def raft_of(node: Node) -> Raft | None:
    """The node's Raft machine; None where its start has not come so far."""
    try:
        raft = node.metadata.quorum.raft
    except (AttributeError, KafkaError):
        return None
    return raft if isinstance(raft, Raft) else None


def image_of(node: Node) -> ClusterImage | None:
    """What the node knows of the cluster; None where its start has not come so far."""
    try:
        return node.image
    except (AttributeError, KafkaError):
        return None


def _in_image(image: ClusterImage, partition: Partition) -> PartitionImage | None:
    topic = image.topics_by_id.get(partition.topic_id)
    return None if topic is None else topic.partitions.get(partition.index)


def _batches(content: bytes) -> Iterator[Batch]:
    try:
        for _, header in walk(content):
            last = header.base_offset + header.last_offset_delta
            yield Batch(header.base_offset, last, header.leader_epoch, header.crc)
    except ParseError:
        return  # the tail of a write that the device did not take whole
