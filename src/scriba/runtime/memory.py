"""How much memory this process may have (the machine's, or what control groups leave of that), and
how much it has."""

import os
import resource
import sys
from collections.abc import Iterator

_V1_LIMIT = "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def available_bytes(own_groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """The smallest limit there is. What cannot be read sets none."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(own_groups, root)])


def private_bytes(own_pages: str = "/proc/self/statm") -> int:
    """What the process holds by itself, without the files that it has mapped. Where the system
    does not tell: the most that it ever held."""
    try:
        with open(own_pages, encoding="ascii") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


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
