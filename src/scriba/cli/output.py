"""Tables for people, JSON for programs.

Results go to standard output. Whatever else there is to say goes to standard error: a line for
people, or under --json one object a line, whose name says what it is (`note`, `warning`, `error`).
"""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from scriba.text import Cell, counted, json_text, printable, table

__all__ = [
    "Cell",
    "Style",
    "counted",
    "note",
    "print_event",
    "print_json",
    "print_lines",
    "print_names",
    "print_table",
    "printable",
    "size",
    "table",
    "warn",
]


class Style:
    """How this run of the command speaks; `main` sets it."""

    json = False


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    for line in table(headings, rows):
        print(line)


def print_lines(text: str) -> None:
    """Text of which parts come from elsewhere, such as names that others chose."""
    print(printable(text))


def print_names(names: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(list(names))
    else:
        print("".join(f"{printable(name)}\n" for name in names), end="")


def print_json(document: Any) -> None:
    print(json_text(document, indent=2))


def note(text: str) -> None:
    print_event(f"note: {text}", {"note": text})


def warn(text: str) -> None:
    print_event(f"warning: {text}", {"warning": text})


def print_event(line: str, document: dict[str, Any]) -> None:
    """Something to say beside the result, in the style that was asked for."""
    if Style.json:
        import json

        line = json.dumps(document)
    # Whoever is told may be gone: after SIGHUP the terminal is.
    with contextlib.suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def size(count: float) -> str:
    """Bytes as a person says them: `512 B`, `1.5 MB`; a thousand makes the next unit."""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if count < 1000:
            break
        count /= 1000
        unit = larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
