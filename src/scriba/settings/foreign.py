"""Settings that the cluster has agreed on under another controller: a later release, Apache Kafka.

What an administrator asks for is checked before it is written, by the controller that writes it. If
that one has other settings than this release, it lets others pass, and then they stand in the
metadata for good. They end nobody: what is known and can be is in force, the rest is left aside.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from scriba.config import ConfigError


class Taken(NamedTuple):
    kept: Mapping[str, str]
    left_aside: tuple[str, ...]


def taken(given: Mapping[str, str], make: Callable[[Mapping[str, str]], object]) -> Taken:
    """Of the settings given those that `make` takes together; it raises ConfigError else.

    Where two contradict each other the first one by name is kept.
    """
    try:
        make(given)
        return Taken(given, ())
    except ConfigError:
        pass
    kept: dict[str, str] = {}
    left: list[str] = []
    for name, text in sorted(given.items()):
        try:
            make({**kept, name: text})
            kept[name] = text
        except ConfigError:
            left.append(name)
    return Taken(kept, tuple(left))
