"""How much memory this process may have: the machine's, or what control groups leave of that."""

import os
from collections.abc import Iterator

_V1_LIMIT = "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def available_bytes(own_groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """The smallest limit there is. What cannot be read sets none."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(own_groups, root)])


def _limits(own_groups: str, root: str) -> Iterator[int]:
    for path in (*_limit_files(own_groups, root), _V1_LIMIT):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdecimal():  # "max" is none
            yield int(text)


def _limit_files(own_groups: str, root: str) -> Iterator[str]:
    """Of the process's own group and of all above it: each of them binds."""
    try:
        with open(own_groups, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, _, group = line.partition("::")
        if hierarchy != "0":
            continue  # of version 1
        names = [name for name in group.split("/") if name]
        for depth in range(len(names), -1, -1):
            yield os.path.join(root, *names[:depth], "memory.max")
