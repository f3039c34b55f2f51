"""The end of a session, which must not wait for ever.

Stopping a session waits for its queries, a query for its batch, a batch for Python workers and for
whatever they wait for; and Java goes on after the driver until all of that has ended, holding the
driver's pipes. `end` asks all of them in the usual way, gives them some time, and then ends what is
left of them by its process id.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.05


def end(spark: SparkSession, patience_s: float = PATIENCE_S) -> bool:
    """Stops queries and session, and the Java process if it is the driver's own.

    Whether all of it ended when asked. Afterwards a new session may be made.
    """
    gateway: Any = SparkContext._gateway
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    family = [] if java is None else list(descendants(java.pid))
    deadline = time.monotonic() + patience_s
    asking = threading.Thread(target=_ask, args=(spark,), daemon=True)
    asking.start()
    asking.join(patience_s)
    willing = not asking.is_alive()
    if java is None:
        return willing  # spark-submit's, which ends with its driver
    if willing:
        with contextlib.suppress(Exception):  # what is left of it ends with Java
            gateway.shutdown()
        assert java.stdin is not None
        with contextlib.suppress(OSError):
            java.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            java.wait(max(0.0, deadline - time.monotonic()))
    willing = willing and java.poll() is not None
    if not willing:
        log.warning("the Spark session did not end within %.0f s and is killed", patience_s)
        family = list(descendants(java.pid))
        java.kill()
        java.wait()
    SparkContext._gateway = SparkContext._jvm = None
    return _gone(family, deadline) and willing


def _ask(spark: SparkSession) -> None:
    try:
        for query in spark.streams.active:
            query.stop()
    except Exception as failure:
        log.warning("a query did not stop: %s", failure)
    try:
        spark.stop()
    except Exception as failure:
        log.warning("the session did not stop: %s", failure)


def processes() -> dict[int, int]:
    """All that run, each with its parent."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, check=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith(b"Z")}


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for child, parent in processes().items():
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, ()))
    while found:
        yield (one := found.pop())
        found += children.get(one, ())


def _gone(family: list[int], deadline: float) -> bool:
    """Waits for workers, which end when they notice that Java has; kills those that do not."""
    while (left := processes().keys() & family) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not left
