"""Times as a person reads them."""

from datetime import UTC, datetime

from scriba.text import counted


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(seconds // length, unit)} ago"
    return f"{counted(seconds, 'second')} ago"
