"""Replicas that the active controller moves by itself: the pass over it, and what operators are
told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scriba.controller.machine import Controller
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.settings.balance_runs import Run
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.metadata.active import ActiveController
    from scriba.broker.observe.events import Note
    from scriba.runtime.ports import Clock

_BEGUN = {
    Run.FILL: "it gets its share of the replicas",
    Run.EMPTY: "it is gone, and others get the replicas that it held",
}


class AutomaticBalance:
    def __init__(self, note: Note, clock: Clock) -> None:
        self._note = note
        self._clock = clock
        self._known: dict[int, Run] = {}

    async def look(self, active: ActiveController | None) -> None:
        """One pass: a plan is made if it is time for one, in slices; then a wave, or an end."""
        if active is None:
            self._known = {}
            return
        balancer = active.machine.balancer
        if not balancer.enabled:
            balancer.forget()
            self._tell({})
            return
        steps = balancer.planning()
        if steps is not None:
            await in_slices(steps, Pace(self._clock))
        await active.step(_next)
        self._tell(balancer.running)

    def _tell(self, running: dict[int, Run]) -> None:
        for broker, run in running.items():
            if self._known.get(broker) is not run:
                self._note(EventKind.BALANCE_BEGUN, f"broker {broker}", _BEGUN[run])
        for broker in self._known:
            if broker not in running:
                text = "replicas no longer move on its account"
                self._note(EventKind.BALANCE_ENDED, f"broker {broker}", text)
        self._known = running


def _next(machine: Controller, now: Instant) -> list[Message]:
    return machine.balancer.step(now)
