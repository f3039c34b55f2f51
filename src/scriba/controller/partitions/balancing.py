"""Replicas move by themselves when a broker joins, or has been gone for a while
(`scriba.balance.auto`).

Why something moves is a record of the log (`balance_runs`), what is to move is planned from the
image (`placement.planning`), and what is under way are reassignments like any others. So a new
controller goes on where the last one ended, and whoever lists, changes or cancels reassignments
sees these. A cancelled move ends the run.

Moves go in waves: a few partitions, and the next ones when those are done. A wave waits for nobody
who is away. Only how long a broker has been gone is soft state: a new controller counts anew.

Never: a partition that nobody leads is moved; a replica goes before the one that replaces it is in
sync (`reassignments`).
"""

from collections import deque
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Final, NamedTuple

from scriba.controller.image import NO_LEADER, PartitionImage
from scriba.controller.partitions.balance_runs import change_runs, runs_of
from scriba.controller.partitions.reassignments import reassign
from scriba.controller.state import State
from scriba.errors import KafkaError
from scriba.instant import Instant
from scriba.placement.planning import Facts, draining, filling, in_order
from scriba.settings.balance_runs import Run
from scriba.settings.placement import ReplicaPlacement
from scriba.wire.schema import Message

WAVE: Final = 8
Where = tuple[str, int]


class _Move(NamedTuple):
    where: Where
    before: tuple[int, ...]
    after: tuple[int, ...]


class _Plan:
    def __init__(self, run: Run, brokers: frozenset[int], moves: Iterable[_Move]) -> None:
        self.run = run
        self.brokers = brokers
        """For whose sake."""
        self.moves = deque(moves)
        self.begun = False
        """Whether anything came of it."""


class Balancer:
    def __init__(self, state: State) -> None:
        self._state = state
        self._gone_since: dict[int, int] = {}
        self._plan: _Plan | None = None

    @property
    def enabled(self) -> bool:
        return self._state.settings.scriba_balance_auto

    @property
    def left(self) -> int:
        """Partitions of the plan whose move has not begun."""
        return 0 if self._plan is None else len(self._plan.moves)

    @property
    def running(self) -> dict[int, Run]:
        """Brokers that are being filled or emptied."""
        runs = runs_of(self._state.image)
        return {at: run for at, run in runs.items() if run in (Run.FILL, Run.EMPTY)}

    # ---- planning ----

    def planning(self) -> Generator[None, None, None] | None:
        """The next plan in short steps, if it is time to make one."""
        if not self.enabled or self._plan is not None:
            return None
        running = self.running
        gone = frozenset(at for at, run in running.items() if run is Run.EMPTY)
        new = frozenset(at for at in running if at not in gone and self._state.active(at))
        if not (gone or new) or self._under_way():
            return None
        return self._make_plan(Run.EMPTY, gone) if gone else self._make_plan(Run.FILL, new)

    def _make_plan(self, run: Run, brokers: frozenset[int]) -> Generator[None, None, None]:
        image = self._state.image
        placed: dict[Where, tuple[int, ...]] = {}
        asked: dict[str, ReplicaPlacement] = {}
        for topic in list(image.topics_by_id.values()):
            placement = image.placement(topic.name)
            if placement is not None:
                asked[topic.name] = placement
            for index, partition in topic.partitions.items():
                yield
                if self._movable(partition, run):
                    placed[topic.name, index] = partition.target
        live = [b for b in image.brokers.values() if b.active]
        racks = {b.id: b.rack for b in image.brokers.values()}
        if run is Run.EMPTY:
            places = {b.id: b.place for b in live if b.takes_new and b.id not in brokers}
            facts = Facts(placed, {}, places, racks, asked)
            plan = yield from draining(facts, brokers, partial=True)
        else:
            takers = {b.id for b in live if b.takes_new and b.id in brokers}
            places = {b.id: b.place for b in live}
            facts = Facts(placed, {}, places, racks, asked)
            plan = yield from filling(facts, takers)
        order = yield from in_order(plan, placed)
        moves = (_Move(where, placed[where], plan[where]) for where in order)
        self._plan = _Plan(run, brokers, moves)

    def _movable(self, partition: PartitionImage, run: Run) -> bool:
        """Whether a move of it can be done; of what is to be filled also, whether it can end."""
        if partition.leader == NO_LEADER:
            return False
        return run is Run.EMPTY or all(map(self._state.active, partition.target))

    def _under_way(self) -> bool:
        """Whether a reassignment is under way that waits for nobody who is away."""
        state = self._state
        return any(
            all(map(state.active, partition.target))
            for _, _, partition in state.partitions.reassigning(state.image)
        )

    # ---- carrying it out ----

    def step(self, now: Instant) -> list[Message]:
        """What changes now: a cause is noted, a wave begins, or a run ends."""
        if not self.enabled:
            self.forget()
            return []
        causes = self._causes(now)
        if causes:
            self._plan = None
            return causes
        plan = self._plan
        if plan is not None and not self._wanted(plan):
            plan = self._plan = None
        if plan is None or self._under_way():
            return []
        wave = list(islice(self._records(plan), WAVE))
        if wave:
            plan.begun = True
            return wave
        self._plan = None
        # Something moved: look again whether all is as it should be.
        return [] if plan.begun else self._ended(plan)

    def _wanted(self, plan: _Plan) -> bool:
        """Whether nobody has stopped meanwhile what it was made for."""
        runs = runs_of(self._state.image)
        return all(runs.get(at) is plan.run for at in plan.brokers)

    def forget(self) -> None:
        """Drops what is soft: it is begun anew when this is switched on again."""
        self._plan = None
        self._gone_since.clear()

    def _causes(self, now: Instant) -> list[Message]:
        """Brokers that have been gone for too long, and those that are back."""
        state, runs = self._state, runs_of(self._state.image)
        brokers = state.image.brokers
        after = dict(runs)
        for at in {*self._gone_since} - {*brokers}:
            del self._gone_since[at]
        for at, broker in brokers.items():
            if not broker.fenced:
                self._gone_since.pop(at, None)
                continue
            since = self._gone_since.setdefault(at, now.mono_ms)
            gone = now.mono_ms - since >= state.settings.scriba_balance_gone_ms
            if gone and runs.get(at) in (None, Run.FILL) and state.partitions.has_replicas(at):
                after[at] = Run.EMPTY
        for at, run in runs.items():
            if at not in brokers:
                if run is not Run.EMPTY:
                    del after[at]
            elif state.active(at) and run is Run.LEFT:
                del after[at]
            elif state.active(at):
                after[at] = Run.FILL
        return change_runs(state.image, after)

    def _records(self, plan: _Plan) -> Iterable[Message]:
        """Of moves that still are what they were planned as."""
        while plan.moves:
            (name, index), before, after = plan.moves.popleft()
            topic = self._state.image.topics_by_name.get(name)
            partition = None if topic is None else topic.partitions.get(index)
            if partition is None or partition.target != before:
                continue
            if not all(map(self._state.active, {*after} - {*before})):
                continue
            try:
                record = reassign(self._state, name, index, after)
            except KafkaError:
                continue
            if record is not None:
                yield record

    def _ended(self, plan: _Plan) -> list[Message]:
        after = runs_of(self._state.image)
        for at in plan.brokers:
            if after.get(at) is not plan.run:
                continue
            if plan.run is Run.EMPTY and at in self._state.image.brokers:
                after[at] = Run.EMPTIED
            else:
                del after[at]
        return change_runs(self._state.image, after)
