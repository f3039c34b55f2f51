"""Whether a play depends on anything but its seed: on the order of sets, on earlier plays."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol


class Played(Protocol):
    @property
    def seed(self) -> int: ...

    @property
    def digest(self) -> str: ...


class Digests:
    """Of plays, by their seeds. What a test has played is not played again for its digest."""

    def __init__(self, run: Callable[[int], Played]) -> None:
        self._run = run
        self._known: dict[int, str] = {}

    def note(self, report: Played) -> None:
        self._known[report.seed] = report.digest

    def of(self, seed: int) -> str:
        if seed not in self._known:
            self.note(self._run(seed))
        return self._known[seed]


def digests_by_hash_seed(play: str, seed: int) -> list[str]:
    """The digests of a play of one seed, each by an interpreter with another seed of hashes."""
    program = f"from {play} import run; print(run({seed}).digest)"
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
