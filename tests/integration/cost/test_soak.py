"""A short soak: the whole mix of work runs, and what it takes is watched rightly."""

import asyncio
from pathlib import Path

import pytest

from bench import soak
from tools.kafka.brokers import ScribaBroker, running

MB = 1 << 20
KINDS = {
    "records written",
    "records read",
    "transactions",
    "committed records read",
    "topics",
    "members",
    "connections",
}
SAMPLES = 5


def test_every_kind_of_work_gets_done(tmp_path: Path) -> None:
    """However long that takes; work that never gets done is ended as a test that hangs."""
    node = ScribaBroker(tmp_path, soak.SETTINGS)
    with running(node):
        seen = soak.Soak(node)

        def enough(spent: float) -> bool:
            done = {kind for kind, count in seen.done.items() if count}
            return done >= KINDS and len(seen.memory) >= SAMPLES

        asyncio.run(soak.run(seen, enough, every=1, say=lambda line: None))
        assert node.stop() == 0
    assert set(seen.done) == KINDS
    assert len(seen.memory) == len(seen.files)


@pytest.mark.parametrize(
    ("memory", "files", "told"),
    [
        ([90 * MB] * 10 + [100 * MB] * 30, [50, 60, 70, 60] * 10, 0),
        ([(90 + n) * MB for n in range(40)], [50] * 40, 1),
        ([90 * MB] * 40, [50 + 3 * n for n in range(40)], 1),
        ([90 * MB + n * 20_000 for n in range(40)], [50 + n % 7 for n in range(40)], 0),
    ],
    ids=["warms up", "memory leaks", "descriptors leak", "within the allowance"],
)
def test_growth_is_noticed_and_warming_up_is_not_growth(
    memory: list[int], files: list[int], told: int
) -> None:
    assert len(soak.complaints(memory, files)) == told
