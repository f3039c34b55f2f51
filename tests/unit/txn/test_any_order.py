"""Producers, partitions, markers, time-outs, crashes in any order, and what must always hold.

Partitions are the ones of storage, without their files. A write takes two steps, as on a broker:
its verification and its append; anything may come between. A transaction is known by its number,
which the test counts itself: each time the coordinator opens one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scriba.errors import ErrorCode, KafkaError
from scriba.records.batch import EndTxnMarker, Record, encode_batch, end_txn_batch, read_header
from scriba.storage.producers.state import Producers, Verification
from scriba.txn.machine import WriteMarkers
from scriba.wire.messages.stored import TransactionLogValue
from tests.typed import present
from tests.unit.txn.shard import CLASSIC, TV2, Shard

PARTITIONS = 3
SLOT = st.integers(0, 2)
PARTITION = st.integers(0, PARTITIONS - 1)


@dataclass
class Client:
    """A producer that may have been replaced without knowing."""

    producer: tuple[int, int]
    version: int
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def bumps(self) -> bool:
        return self.version >= TV2


@dataclass
class Pending:
    """A batch that the coordinator has agreed to and that is not in the log yet."""

    client: Client
    producer: tuple[int, int]
    partition: int
    sequence: int
    verification: Verification | None
    number: int


class Partition:
    def __init__(self) -> None:
        self.producers = Producers()
        self.end = 0
        self.open: dict[int, set[int]] = {}
        """Numbers of the transactions with records here that no marker has ended, per producer."""


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(abort_interval_ms=1_000, max_timeout_ms=10_000)
        self.partitions = [Partition() for _ in range(PARTITIONS)]
        self.clients: list[Client] = []
        self.pending: list[Pending] = []
        self.number = 0
        self.outcomes: dict[int, set[bool]] = {}
        """Transaction -> the ways in which markers have ended it."""
        self.promised: dict[int, bool] = {}
        """Transaction -> what its client was told, or what the coordinator has stored."""
        self.given: tuple[int, int] = (-1, -1)
        """The producer that InitProducerId told of last."""

    # ---- what is stored ----

    def stored(self) -> TransactionLogValue:
        _, value = self.shard.log[-1]
        return TransactionLogValue.decode(present(value), 1)

    def decided(self) -> None:
        """The last record may be a decision: it is the only one for its transaction."""
        if self.shard.log:
            status = self.stored().transaction_status
            if status in (2, 3):
                assert self.promised.setdefault(self.number, status == 2) == (status == 2)

    # ---- clients ----

    @rule(version=st.sampled_from([CLASSIC, TV2]), known=st.booleans(), slot=SLOT)
    def begins(self, version: int, known: bool, slot: int) -> None:
        """A new producer, or an old one that comes back with its name."""
        old = self.client(slot) if known else None
        named = old.producer if old is not None else (-1, -1)
        answer = self.shard.init(timeout_ms=5_000, producer=named)
        self.decided()
        if answer.error_code:
            return
        self.given = answer.producer_id, answer.producer_epoch
        if old is not None:
            self.clients.remove(old)
            version = old.version
        self.clients.append(Client(self.given, version))
        if len(self.clients) > 3:
            del self.clients[0]

    def client(self, slot: int) -> Client | None:
        return self.clients[slot % len(self.clients)] if self.clients else None

    @precondition(lambda self: self.clients)
    @rule(slot=SLOT, where=PARTITION)
    def is_verified(self, slot: int, where: int) -> None:
        client = self.client(slot)
        assert client is not None
        if any(p.client is client and p.partition == where for p in self.pending):
            return
        sequence = client.sequences.get(where, 0)
        was_open = self.is_open()
        if not client.bumps and self.shard.add(client.producer, where, version=CLASSIC) != [0]:
            return
        if not was_open and self.is_open():
            self.number += 1
            was_open = True
        try:
            verification = self.partitions[where].producers.begin_verification(
                *client.producer, sequence, client.bumps, self.shard.now.wall_ms
            )
        except KafkaError:
            return
        if verification is not None:
            code = self.shard.add(client.producer, where, version=TV2, verify=not client.bumps)
            if code != [ErrorCode.NONE]:
                return
        if not was_open and self.is_open():
            self.number += 1
        self.pending.append(
            Pending(client, client.producer, where, sequence, verification, self.number)
        )

    def is_open(self) -> bool:
        return bool(self.shard.log) and self.stored().transaction_status == 1

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 8))
    def is_appended(self, which: int) -> None:
        write = self.pending.pop(which % len(self.pending))
        partition = self.partitions[write.partition]
        batch = read_header(
            encode_batch(
                [Record(timestamp=1)],
                producer_id=write.producer[0],
                producer_epoch=write.producer[1],
                base_sequence=write.sequence,
                transactional=True,
            )
        )
        try:
            partition.producers.admit(batch, write.verification)
            repeat = partition.producers.check(batch)
        except KafkaError:
            return
        if repeat is not None:
            return
        partition.producers.update(batch, partition.end, self.shard.now.wall_ms)
        partition.end += 1
        partition.open.setdefault(write.producer[0], set()).add(write.number)
        write.client.sequences[write.partition] = write.sequence + 1
        # Nothing of a producer is appended once another was told that it has taken over.
        assert write.producer[0] < self.given[0] or write.producer >= self.given

    @precondition(lambda self: self.clients)
    @rule(slot=SLOT, commit=st.booleans(), lost=st.booleans())
    def ends(self, slot: int, commit: bool, lost: bool) -> None:
        client = self.client(slot)
        assert client is not None
        number, was_open = self.number, self.is_open()
        answer = self.shard.end(client.producer, commit, version=client.version)
        self.decided()
        if answer.error_code:
            return
        if was_open:
            assert self.promised[number] == commit
        if lost:
            return  # it will ask again with the epoch it has
        if client.bumps:
            client.producer = answer.producer_id, answer.producer_epoch
            client.sequences = {}

    # ---- markers, time and failures ----

    @precondition(lambda self: self.shard.sends)
    @rule(reached=st.sets(PARTITION), done=st.booleans())
    def markers_are_written(self, reached: set[int], done: bool) -> None:
        """To some of the partitions, or to all of them."""
        send = self.shard.sends[0]
        value = self.stored()
        assert (send.producer_id, send.producer_epoch) == (value.producer_id, value.producer_epoch)
        for _, where in send.partitions:
            if done or where in reached:
                self.mark(where, send.producer_id, send.producer_epoch, send)
        if done:
            self.shard.sends.pop(0)
            self.shard.written(send)
            self.covers_everything(send)

    def mark(self, where: int, producer_id: int, epoch: int, send: WriteMarkers) -> None:
        partition = self.partitions[where]
        marker = EndTxnMarker(send.commit, 0)
        batch = read_header(end_txn_batch(producer_id, epoch, marker, 1))
        partition.producers.check_marker_epoch(producer_id, epoch, send.transaction_version)
        partition.producers.check_marker(batch, marker)
        partition.producers.end_txn(batch, marker, partition.end, self.shard.now.wall_ms)
        partition.end += 1
        ended = partition.open.pop(producer_id, set())
        assert len(ended) <= 1, "a marker ended records of two transactions"
        for number in ended:
            self.outcomes.setdefault(number, set()).add(send.commit)

    def covers_everything(self, send: WriteMarkers) -> None:
        for partition in self.partitions:
            assert send.producer_id not in partition.open, "records without an end"

    @rule(ms=st.sampled_from([10, 1_000, 6_000]))
    def time_passes(self, ms: int) -> None:
        self.shard.pass_time(ms)
        self.decided()

    @rule()
    def coordinator_crashes(self) -> None:
        before = [(s.producer_id, s.producer_epoch, s.commit) for s in self.shard.sends]
        self.shard.crash()
        after = [(s.producer_id, s.producer_epoch, s.commit) for s in self.shard.sends]
        assert before == after

    # ---- always ----

    @invariant()
    def one_outcome_per_transaction(self) -> None:
        for number, ways in self.outcomes.items():
            assert ways == {self.promised[number]}

    @invariant()
    def epochs_never_go_back(self) -> None:
        seen: dict[int, int] = {}
        for _, raw in self.shard.log:
            value = TransactionLogValue.decode(present(raw), 1)
            assert value.producer_epoch >= seen.get(value.producer_id, 0)
            seen[value.producer_id] = value.producer_epoch

    @invariant()
    def what_was_written_is_open_or_ended(self) -> None:
        """The coordinator knows of every partition where something is open: no hanging records."""
        if not self.shard.log:
            return
        value = self.stored()
        known = {i for t in value.transaction_partitions or () for i in t.partition_ids}
        for index, partition in enumerate(self.partitions):
            if partition.open:
                assert index in known


Transactions.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestAnyOrder = Transactions.TestCase
