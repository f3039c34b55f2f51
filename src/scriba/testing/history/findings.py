"""What a checker has found, and names that all checkers share."""

from dataclasses import dataclass, field
from typing import Final

Where = tuple[str, int]
"""(topic, partition)"""

MOST: Final = 20
"""Findings that are kept: the first ones tell the story."""


@dataclass(slots=True)
class Findings:
    violations: list[str] = field(default_factory=list)

    def violation(self, text: str) -> None:
        if len(self.violations) < MOST:
            self.violations.append(text)


def place(where: Where) -> str:
    return f"{where[0]}-{where[1]}"


def short(value: bytes | None) -> str:
    return "nothing" if value is None else value[:24].decode("ascii", "backslashreplace")
