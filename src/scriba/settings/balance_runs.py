"""`scriba.balance.run`: which brokers the controller is filling or emptying by itself.

The value is one word for each broker, such as `fill:4,emptied:5`. It is a setting of the cluster:
it survives the controller that wrote it, and anybody can read it, or delete it to stop.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Final

NAME: Final = "scriba.balance.run"
_WORD: Final = re.compile(r"(fill|emptied|empty|left):([0-9]{1,9})")


class Run(enum.StrEnum):
    FILL = "fill"
    """It has joined, and gets its share."""
    EMPTY = "empty"
    """It is gone, and others get what it held."""
    EMPTIED = "emptied"
    """That is done; it gets its share when it returns."""
    LEFT = "left"
    """Somebody has stopped that; it is left alone until it returns."""


def _words(text: str) -> Iterator[str]:
    return (word.strip() for word in text.split(",") if word.strip())


def read_runs(text: str) -> dict[int, Run]:
    """By broker; what is not understood is left out."""
    found = (_WORD.fullmatch(word) for word in _words(text))
    return {int(each[2]): Run(each[1]) for each in found if each}


def write_runs(runs: Mapping[int, Run]) -> str:
    return ",".join(f"{run}:{broker}" for broker, run in sorted(runs.items()))


def unknown_run(text: str) -> str | None:
    if all(_WORD.fullmatch(word) for word in _words(text)):
        return None
    return "must be of the form fill:4,empty:5; delete it to stop what is under way"
