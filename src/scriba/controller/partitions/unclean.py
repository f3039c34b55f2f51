"""Unclean elections by asking: which partitions, which replicas, and what comes of their answers.

An unclean election gives a partition to a replica that may lack acknowledged records. Which of them
lacks least only they can tell. So the partition stays without a leader while they are asked, and of
those that answer in time the one with the greatest (epoch, offset) leads. If one that may lead
without a loss returns meanwhile, it leads. Where nobody answers they are asked again.

The shell asks (`broker.metadata.unclean`). A question is good for one leader epoch: answers that
come after somebody else was elected change nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from scriba.controller.image import NO_LEADER, RECOVERING, Delta, PartitionImage, TopicImage
from scriba.controller.partitions.elections import (
    UNCLEAN_ELECTION,
    Election,
    acceptor,
    change,
    lost_by,
    rules,
    wish_unclean,
)
from scriba.controller.state import Ends, State
from scriba.wire.messages.admin import ElectLeadersRequest
from scriba.wire.schema import Message

AT_ONCE: Final = 1_000
"""Partitions that are asked for together."""

TopicIdPartition = tuple[bytes, int]
"""Topic id and index of a partition."""


class Question(NamedTuple):
    """What do these brokers have of a partition?"""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    brokers: tuple[int, ...]

    @property
    def place(self) -> TopicIdPartition:
        return self.topic_id, self.partition


class Choice(NamedTuple):
    """An unclean election: whose partition it is, and what is lost."""

    partition: str
    text: str


def note_leaderless(state: State, delta: Delta) -> None:
    """Notes partitions that have lost their leader by a change."""
    for topic_id, changes in delta.partitions.items():
        topic = state.image.topics_by_id.get(topic_id)
        lost = [
            index
            for index in changes
            if topic is not None and topic.partitions[index].leader == NO_LEADER
        ]
        if topic is not None and lost:
            of_topic = rules(state, topic.name)
            for index in lost:
                wish_unclean(state, topic_id, index, of_topic)


def take_questions(state: State) -> list[Question]:
    """Some of what is due. A partition none of whose brokers is alive is due again when one is."""
    questions: list[Question] = []
    for place in list(islice(state.unclean_due, AT_ONCE)):
        del state.unclean_due[place]
        topic = state.image.topics_by_id.get(place[0])
        if topic is not None:
            questions += _question(state, topic, place[1])
    return questions


def questions_of(state: State, request: ElectLeadersRequest) -> list[Question]:
    """What an administrator's unclean election has to know first."""
    if request.election_type != UNCLEAN_ELECTION or not state.settings.scriba_unclean_wait_ms:
        return []
    if request.topic_partitions is None:
        return [
            question
            for topic, index, _ in state.partitions.leaderless(state.image)
            for question in _question(state, topic, index)
        ]
    return [
        question
        for asked in request.topic_partitions
        if (topic := state.image.topics_by_name.get(asked.topic)) is not None
        for index in dict.fromkeys(asked.partitions)
        for question in _question(state, topic, index)
    ]


def _question(state: State, topic: TopicImage, index: int) -> Iterator[Question]:
    partition = topic.partitions.get(index)
    if partition is None or partition.leader != NO_LEADER:
        return
    brokers = tuple(filter(acceptor(state, partition), partition.replicas))
    # Observers are asked, too: what they have beyond the one elected is lost. None is elected.
    if not rules(state, topic.name).observing.issuperset(brokers):
        yield Question(topic.name, topic.id, index, partition.leader_epoch, brokers)


def elect(
    state: State,
    questions: Sequence[Question],
    answers: Mapping[TopicIdPartition, Ends],
    told: list[Choice],
) -> Iterator[Message]:
    """Elects by what was answered; `told` gets what each election loses."""
    for question in questions:
        partition = _asked_for(state, question)
        if partition is None:
            continue
        of_topic = rules(state, question.topic)
        if not of_topic.unclean:
            continue  # it was taken back meanwhile
        ends = answers[question.place].by_broker if question.place in answers else {}
        record = change(
            question.topic_id,
            question.partition,
            partition,
            acceptor(state, partition),
            of_topic,
            election=Election.UNCLEAN,
            ends=ends,
        )
        if record is None or record.leader < 0:
            wish_unclean(state, question.topic_id, question.partition, of_topic)
        elif record.leader_recovery_state == RECOVERING:
            where = f"{question.topic}-{question.partition}"
            told.append(Choice(where, lost_by(partition, record.leader, ends)))
        if record is not None:
            yield record


def _asked_for(state: State, question: Question) -> PartitionImage | None:
    """The partition, if it is still as it was."""
    topic = state.image.topics_by_id.get(question.topic_id)
    partition = topic.partitions.get(question.partition) if topic is not None else None
    if partition is None or partition.leader != NO_LEADER:
        return None
    return partition if partition.leader_epoch == question.leader_epoch else None


def note_answers(
    state: State, answers: Mapping[TopicIdPartition, Ends], asked: Iterable[Question]
) -> None:
    """Keeps answers for the administrator's election that comes next."""
    for question in asked:
        state.ends[question.place] = answers.get(question.place, Ends(question.leader_epoch, {}))
