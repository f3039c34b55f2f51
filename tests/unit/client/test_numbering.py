"""Sequence numbers against a model of the broker: nothing twice, nothing in the wrong order."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scriba.client.model import TopicPartition
from scriba.client.producing.accumulator import Queue
from scriba.client.producing.batches import Batch
from scriba.client.producing.sequences import MAX_EPOCH, SequenceNumbers
from scriba.records.batch import Record, next_sequence

WHERE = TopicPartition("t", 0)
REMEMBERED = 5


def batch_of(count: int, ordinal: int) -> Batch:
    batch = Batch(WHERE, (ordinal,), 0)
    for _ in range(count):
        batch.add(Record(0, 0, None, b"v"))
    batch.closed = True
    return batch


@dataclass
class Leader:
    """A partition's leader as far as idempotent producers are concerned."""

    log: list[int] = field(default_factory=list)
    """Ordinals of the batches written."""
    state: tuple[int, int] = (-1, -1)
    last: int = -1
    recent: list[tuple[int, int]] = field(default_factory=list)

    def append(self, batch: Batch) -> str:
        owner = (batch.producer_id, batch.producer_epoch)
        end = next_sequence(batch.sequence, batch.count - 1)
        if owner == self.state and (batch.sequence, end) in self.recent:
            return "duplicate"
        if owner < self.state:
            return "fenced"
        if owner > self.state:
            expected = batch.sequence if self.state == (-1, -1) else 0
        else:
            expected = next_sequence(self.last)
        if batch.sequence != expected:
            return "out of order"
        if owner != self.state:
            self.recent = []
        self.state, self.last = owner, end
        self.recent = [*self.recent[1 - REMEMBERED :], (batch.sequence, end)]
        self.log.append(batch.ordinal[0])
        return "written"


class Play:
    """A producer's partition and its leader, with losses in both directions."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.queue = Queue(WHERE)
        self.sequences = SequenceNumbers(7, 0)
        self.wire: list[Batch] = []
        self.late: list[Batch] = []
        """What an old leader took and has not answered; a new one has it, too."""
        self.succeeded: list[int] = []
        self.given_up: list[int] = []
        self.made = 0

    def make(self, count: int) -> None:
        self.made += 1
        self.queue.waiting.append(batch_of(count, self.made))

    def send(self) -> None:
        queue, sequences = self.queue, self.sequences
        if not queue.waiting:
            return
        batch = queue.waiting[0]
        may = sequences.may_send(batch, len(queue.in_flight))
        if sequences.broken and not queue.in_flight:
            sequences.restart([b for b in queue.waiting if b.numbered])
            may = True
        if not may:
            return
        if not batch.numbered:
            sequences.give(batch)
        queue.in_flight.append(queue.waiting.popleft())
        self.wire.append(batch)

    def answer(self, fate: str) -> None:
        """The oldest request reaches the leader, or not; its answer comes back, or not."""
        if not self.wire:
            return
        batch = self.wire.pop(0)
        self.queue.in_flight.remove(batch)
        if fate == "refused":  # a leader that has moved
            self.again(batch)
            return
        if fate == "lost before":
            batch.uncertain = True
            self.again(batch)
            return
        said = self.leader.append(batch)
        if fate == "overtaken" and said in ("written", "duplicate"):
            self.queue.in_flight.append(batch)
            self.late.append(batch)
        elif fate in ("lost after", "overtaken"):
            batch.uncertain = True
            self.again(batch)
        elif said in ("written", "duplicate"):
            self.sequences.acknowledged(batch)
            if not batch.finished:
                self.succeeded.append(batch.ordinal[0])
                batch.succeed(0, -1)
        else:
            assert said == "out of order"
            self.sequences.out_of_order(batch)
            self.again(batch)

    def give_up_old_leader(self) -> None:
        """Its answers never come."""
        late, self.late = self.late, []
        for batch in late:
            self.queue.in_flight.remove(batch)
            batch.uncertain = True
            self.again(batch)

    def again(self, batch: Batch) -> None:
        if not batch.finished:
            self.queue.put_back(batch)

    def expire(self) -> None:
        """The oldest batch has used up its time, wherever it is."""
        alive = [b for b in self.queue.batches() if not b.finished]
        if not alive:
            return
        batch = min(alive, key=lambda b: b.ordinal)
        if batch in self.queue.in_flight:
            batch.uncertain = True
        else:
            self.queue.waiting.remove(batch)
        self.sequences.given_up(batch)
        self.given_up.append(batch.ordinal[0])
        batch.data = None
        batch.finished = True

    def finish(self) -> None:
        self.give_up_old_leader()
        for _ in range(200):
            self.send()
            self.answer("fine")

    def check(self) -> None:
        written = self.leader.log
        assert len(set(written)) == len(written), f"written twice: {written}"
        assert written == sorted(written), f"in the wrong order: {written}"
        assert set(self.succeeded) <= set(written), "acknowledged but not written"


STEPS = (
    "make",
    "send",
    "send",
    "fine",
    "fine",
    "refused",
    "lost before",
    "lost after",
    "overtaken",
    "old leader is silent",
    "expire",
)


@settings(max_examples=250, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=10, max_size=60))
def test_whatever_is_lost_nothing_is_written_twice_or_out_of_order(steps: list[str]) -> None:
    play = Play()
    for step in ["make", "send", "make", "send", *steps]:
        if step == "make":
            play.make(1 + play.made % 3)
        elif step == "send":
            play.send()
        elif step == "expire":
            play.expire()
        elif step == "old leader is silent":
            play.give_up_old_leader()
        else:
            play.answer(step)
        play.check()
    play.finish()
    play.check()
    assert not play.queue.waiting, "the partition is stuck"
    assert sorted([*play.succeeded, *play.given_up]) == list(range(1, play.made + 1))


def test_batch_that_an_old_leader_never_answered_is_known_to_the_new_one() -> None:
    """However many are sent behind it meanwhile: the broker remembers five."""
    play = Play()
    play.make(1)
    play.finish()
    play.make(1)
    play.send()
    play.answer("overtaken")
    for _ in range(20):
        play.make(1)
        play.send()
        play.answer("fine")
    assert len(play.succeeded) == 5, "nothing is sent that would make the broker forget"
    play.finish()
    play.check()
    assert len(play.leader.log) == 22
    assert play.sequences.epoch == 0


def test_a_gap_that_may_have_been_written_is_asked_about_before_counting_starts_again() -> None:
    play = Play()
    play.make(1)
    play.finish()
    for _ in range(3):
        play.make(1)
        play.send()
    play.answer("lost after")  # batch 2 is written, nobody knows
    play.expire()
    play.answer("fine")
    play.answer("fine")
    play.make(1)
    play.finish()
    assert play.leader.log == [1, 2, 3, 4, 5]
    assert play.sequences.epoch == 0, "later acknowledgements prove that there is no gap"


def test_a_gap_that_was_not_written_raises_the_epoch() -> None:
    play = Play()
    play.make(2)
    play.finish()
    for _ in range(3):
        play.make(2)
        play.send()
    play.answer("lost before")
    play.expire()
    play.finish()
    assert play.leader.log == [1, 3, 4]
    assert play.sequences.epoch == 1


class Huge(Batch):
    count = 2**31 - 1


def test_sequences_wrap_after_the_largest_number() -> None:
    sequences = SequenceNumbers(7, 0)
    big = Huge(WHERE, (1,), 0)
    big.closed = True
    sequences.give(big)
    sequences.acknowledged(big)
    two = batch_of(2, 2)
    sequences.give(two)
    assert two.sequence == 2**31 - 1
    sequences.acknowledged(two)
    three = batch_of(1, 3)
    sequences.give(three)
    assert three.sequence == 1


def test_the_last_epoch_needs_a_new_producer_id() -> None:
    sequences = SequenceNumbers(7, MAX_EPOCH)
    batch = batch_of(1, 1)
    sequences.give(batch)
    sequences.forgotten(batch)
    assert sequences.exhausted
    sequences.restart([batch], (8, 0))
    assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (8, 0, 0)
