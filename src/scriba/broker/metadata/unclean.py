"""Asks replicas what they have, for elections that may lose records.

The active controller asks all live replicas of a partition that nobody may lead, all at once, by
ListOffsets as a debugging replica: any replica answers that, its leader or not. The answer has the
end of the log and its newest epoch. Whoever has not answered after `scriba.unclean.wait.ms` is
passed over. Nothing waits for it but the partitions concerned: the controller serves on meanwhile,
and if it loses its epoch nothing is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.metadata.deaths import ActiveSteps
from scriba.controller.partitions.elections import End
from scriba.controller.partitions.unclean import AT_ONCE, Choice, Question, TopicIdPartition
from scriba.controller.state import Ends
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.peers.errors import ClientError, NetworkError
from scriba.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from scriba.broker.observe.counters import Counters
    from scriba.broker.observe.events import Note
    from scriba.broker.ports import BrokerClient
    from scriba.runtime.loop.tasks import Tasks

DEBUGGING_REPLICA: Final = -2
LATEST: Final = -1
AGAIN_MS: Final = 50
"""After which a broker is tried again that could not be reached."""
NAMED: Final = 100
"""Elections that get an event of their own in one round; of the others there is a number."""


class ActiveSource(Protocol):
    @property
    def active(self) -> ActiveSteps | None: ...


class ReplicaSurvey:
    def __init__(
        self,
        source: ActiveSource,
        brokers: BrokerClient,
        tasks: Tasks,
        note: Note,
        counters: Counters,
    ) -> None:
        self._source = source
        self._brokers = brokers
        self._tasks = tasks
        self._note = note
        self._counters = counters
        self._running = False

    def look(self) -> None:
        """Begins to ask, if something is due and nobody is being asked."""
        active = self._source.active
        if active is not None and active.machine.asks and not self._running:
            self._running = True
            self._tasks.spawn(self._run(active), name="unclean elections")

    async def _run(self, active: ActiveSteps) -> None:
        try:
            # What got no answer comes again with the next look.
            while self._source.active is active and active.machine.asks:
                if not await self._round(active):
                    return
        except KafkaError as error:
            # The epoch is lost, or the device takes no writes; whoever is active then asks anew.
            if error.code is not ErrorCode.NOT_CONTROLLER:
                self._note(EventKind.UNCLEAN_CHOICE, "cluster", f"nobody was elected: {error}")
        finally:
            self._running = False

    async def _round(self, active: ActiveSteps) -> bool:
        """Asks for some partitions and elects; whether anybody was."""
        machine = active.machine
        questions = machine.questions()
        answers = await self.ask(questions, machine.state.settings.scriba_unclean_wait_ms)
        if self._source.active is not active:
            return False
        told: list[Choice] = []
        await active.step(lambda machine, now: machine.elect_unclean(questions, answers, told, now))
        self.tell(told)
        return bool(told)

    def tell(self, told: Sequence[Choice]) -> None:
        for choice in told[:NAMED]:
            self._note(EventKind.UNCLEAN_CHOICE, choice.partition, choice.text)
        if len(told) > NAMED:
            text = f"and {len(told) - NAMED} more partitions"
            self._note(EventKind.UNCLEAN_CHOICE, "cluster", text)

    async def ask(
        self, questions: Sequence[Question], wait_ms: int
    ) -> dict[TopicIdPartition, Ends]:
        """What replicas have, as far as they tell in time; nobody is left out by one that does
        not."""
        answers = {each.place: Ends(each.leader_epoch, {}) for each in questions}
        by_broker: dict[int, list[Question]] = {}
        for question in questions:
            for broker in question.brokers:
                by_broker.setdefault(broker, []).append(question)
        await asyncio.gather(
            *(
                self._ask_one(broker, asked[at : at + AT_ONCE], wait_ms, answers)
                for broker, asked in by_broker.items()
                for at in range(0, len(asked), AT_ONCE)
            )
        )
        return answers

    async def _ask_one(
        self,
        broker: int,
        questions: Sequence[Question],
        wait_ms: int,
        answers: dict[TopicIdPartition, Ends],
    ) -> None:
        request = _request(questions)
        self._counters.replicas_asked += len(questions)
        found: Mapping[tuple[str, int], End] = {}
        try:
            async with asyncio.timeout(wait_ms / 1000):
                found = _ends(await self._call(broker, request, wait_ms))
        except (ClientError, TimeoutError):
            pass
        for question in questions:
            end = found.get((question.topic, question.partition))
            if end is None:
                self._counters.replicas_passed_over += 1
                continue
            known = answers[question.place]
            answers[question.place] = known._replace(by_broker={**known.by_broker, broker: end})

    async def _call(
        self, broker: int, request: ListOffsetsRequest, wait_ms: int
    ) -> ListOffsetsResponse:
        while True:
            try:
                response: ListOffsetsResponse = await self._brokers.call(
                    broker, request, timeout_ms=wait_ms
                )
                return response
            except NetworkError:
                # A connection of before may have ended; the time-out around this is the limit.
                await asyncio.sleep(AGAIN_MS / 1000)


def _request(questions: Iterable[Question]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for question in questions:
        topic = topics.setdefault(question.topic, ListOffsetsTopic(name=question.topic))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=question.partition, timestamp=LATEST)
        )
    return ListOffsetsRequest(replica_id=DEBUGGING_REPLICA, topics=list(topics.values()))


def _ends(response: ListOffsetsResponse) -> dict[tuple[str, int], End]:
    return {
        (topic.name, each.partition_index): End(each.leader_epoch, each.offset)
        for topic in response.topics
        for each in topic.partitions
        if not each.error_code and each.offset >= 0
    }
