"""Why the controller moves replicas by itself, as records of the metadata log (see
`settings.balance_runs`): a run begins, ends and is stopped by the same kind of record, so the next
controller goes on where this one ends."""

from collections.abc import Mapping

from scriba.controller.image import BROKER, ClusterImage
from scriba.controller.state import State
from scriba.settings.balance_runs import NAME, Run, read_runs, write_runs
from scriba.wire.messages.stored import ConfigRecord
from scriba.wire.schema import Message


def runs_of(image: ClusterImage) -> dict[int, Run]:
    return read_runs(image.config(BROKER, "").get(NAME, ""))


def change_runs(image: ClusterImage, after: Mapping[int, Run]) -> list[Message]:
    """What makes them these, nothing if they are."""
    if runs_of(image) == after:
        return []
    text = write_runs(after) or None
    return [ConfigRecord(resource_type=BROKER, resource_name="", name=NAME, value=text)]


def joined(state: State, broker: int) -> list[Message]:
    """A broker that the cluster has never seen registers. What a gone one left without a place may
    have one now."""
    image = state.image
    if not state.settings.scriba_balance_auto or broker in image.brokers or not image.topics_by_id:
        return []
    after = {at: Run.EMPTY if run is Run.EMPTIED else run for at, run in runs_of(image).items()}
    return change_runs(image, {**after, broker: Run.FILL})


def stopped(state: State) -> list[Message]:
    """Somebody has cancelled a move: nothing more moves by itself until there is a new cause."""
    runs = runs_of(state.image)
    after = {
        at: Run.LEFT if run is Run.EMPTY else run for at, run in runs.items() if run is not Run.FILL
    }
    return change_runs(state.image, after)
