"""Long work in its shortest slices: others come between any two of its steps."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

import scriba
from scriba.broker.coordinators.runtime import CoordinatorRuntime
from scriba.broker.coordinators.shard import Shard, State
from scriba.broker.net.large_requests import LIMITS
from scriba.runtime.loop import pace
from scriba.testing.sim.run import PLAYS
from scriba.testing.sim.short_slices import SHORTEST, short_slices

DIVIDES: Final = re.compile(
    r"^(\w*(?:SLICE|AT_ONCE|BETWEEN_LOOKS|PER_LOOK)\w*)(?:: Final)? = ", re.M
)
SOURCE: Final = Path(scriba.__file__).parent

NOT_ELEMENTS: Final = {
    "broker.partitions.directories.dir_moves": {"SLICE_BYTES"},
    "broker.partitions.replication.fetchers": {"AT_ONCE_BYTES"},
    "broker.net.large_requests": {"BYTES_AT_ONCE"},
    "raft.allowance": {"MOST_AT_ONCE"},
    "runtime.files.populate": {"_AT_ONCE"},
    "runtime.loop.lag": {"SLICE_S", "_BETWEEN_SLICES"},
    "storage.segments.segment": {"_AT_ONCE"},
}
"""Bytes, rates, and the watch over slices."""

SHORTENED_BY_OTHER_TESTS: Final = {
    "broker.metrics.http": {"EVENTS_AT_ONCE"},  # the size of a page
    "broker.net.large_requests": {"AT_ONCE", "TOLD_AT_ONCE"},  # changed where it is used
    "controller.partitions.preferred_leaders": {"AT_ONCE"},  # how many a second
    "controller.partitions.unclean": {"AT_ONCE"},  # the size of a request
    "client.producing.explanations": {"AT_ONCE"},
    "groups.assignors.spec": {"AT_ONCE"},  # changed where it is used
    "storage.directory.logdir": {
        "_CLOSING_AT_ONCE",
        "_SYNCED_AT_ONCE",
    },  # threads
}


def declared() -> Iterator[tuple[str, str]]:
    for room in ("broker", "client", "controller", "groups", "raft", "runtime", "storage", "txn"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            for name in DIVIDES.findall(path.read_text()):
                yield module, name


def test_whatever_divides_work_is_known() -> None:
    """A new constant is either shortened, or it is said here why not."""
    known: list[Mapping[str, Collection[str]]] = [SHORTEST, NOT_ELEMENTS, SHORTENED_BY_OTHER_TESTS]
    unknown = {
        f"{module}.{name}"
        for module, name in declared()
        if not any(name in table.get(module, ()) for table in known)
    }
    assert not unknown


def test_all_is_as_it_was_afterwards() -> None:
    before, limits = dict(vars(pace)), dict(LIMITS)
    with short_slices():
        assert vars(pace)["SLICE_MS"] == 0
        assert {limit.at_once for limit in LIMITS.values()} == {1}
    assert before == vars(pace)
    assert limits == LIMITS


@pytest.mark.parametrize(
    ("play", "seed"),
    [
        *(("coordinated", seed) for seed in range(6)),
        *(("cluster", seed) for seed in range(2)),
        *(("changing", seed) for seed in (0, 44, 52)),  # 44, 52: a hand-over undid a move
        *(("diverging", seed) for seed in range(1)),
    ],
)
def test_what_holds_also_holds_between_any_two_slices(play: str, seed: int) -> None:
    with short_slices():
        report = PLAYS[play](seed)
    assert not report.violations


def test_a_shard_that_answers_while_it_loads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read so far is told for all there is. As the world is otherwise, a load that
    finds its records in memory is one step, and the seed is none the wiser."""
    lied = 0
    truly = CoordinatorRuntime.answering

    def too_early(self: CoordinatorRuntime, index: int) -> Shard:
        nonlocal lied
        shard = self._shards.get(index)
        if shard is None or shard.state is not State.LOADING:
            return truly(self, index)
        lied += 1
        return shard

    monkeypatch.setattr(CoordinatorRuntime, "answering", too_early)
    with short_slices():
        found = any(
            "last accepted is" in violation
            for seed in (6, *range(40))
            for violation in PLAYS["coordinated"](seed).violations
        )
    assert lied
    assert found
