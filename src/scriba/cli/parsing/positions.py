"""Where in a log to begin to read, in the words of a person."""

import contextlib
import re
from datetime import datetime
from typing import Final, Literal, NamedTuple

Kind = Literal["beginning", "end", "offset", "last", "time"]

_UNITS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)


_MOST: Final = 2**63 - 1


class Position(NamedTuple):
    """`number` is the offset, how many records before the end, or milliseconds since 1970."""

    kind: Kind
    number: int = 0


BEGINNING: Final = Position("beginning")
END: Final = Position("end")
_NAMED: Final = {"beginning": BEGINNING, "earliest": BEGINNING, "end": END, "latest": END}


def parse_position(text: str, now_ms: int) -> Position:
    """ValueError says what is understood."""
    with contextlib.suppress(OverflowError):
        found = _read(text, now_ms)
        if found.number <= _MOST:
            return found
    raise ValueError(f"{text[:100]!r} is beyond all offsets and times that there are")


def _read(text: str, now_ms: int) -> Position:
    words = text.strip().lower()
    if words in _NAMED:
        return _NAMED[words]
    if re.fullmatch(r"-?\d+", words, re.ASCII):
        number = int(words)
        return Position("offset", number) if number >= 0 else Position("last", -number)
    if re.fullmatch(r"@\d+", words, re.ASCII):
        return Position("time", int(words[1:]))
    if words.endswith(" ago"):
        seconds = parse_duration(words.removesuffix("ago"))
        if seconds is not None:
            return Position("time", max(0, now_ms - round(seconds * 1000)))
    elif words.startswith("p"):
        from scriba.client.settings import parse_duration_ms

        long_ago = parse_duration_ms(words.upper())
        if long_ago is not None:
            return Position("time", max(0, now_ms - long_ago))
    else:
        moment = _moment(text.strip())
        if moment is not None:
            return Position("time", max(0, round(moment.timestamp() * 1000)))
    raise ValueError(
        f"{text!r} is no place in a log: give beginning, end, an offset, -10 for the last ten, "
        "'2h ago' or PT2H, a date and time such as 2026-01-31T12:00, or @milliseconds"
    )


def parse_duration(text: str) -> float | None:
    """Seconds of `90m`, `1h 30min` or `2 days`; None when it is no such time."""
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        unit = _UNITS.get(found[2])
        if unit is None:
            return None
        total += float(found[1]) * unit
        at = found.end()
    return total if at and at == len(text) else None


def _moment(text: str) -> datetime | None:
    """An ISO date, with or without a time; where there is no zone it is the local one."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
