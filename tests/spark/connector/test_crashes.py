"""kill -9 of the whole driver, JVM and workers included: the same rows in, the same rows out."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scriba.spark import ExactlyOnceSink
from tests.spark.desk import JAVA, Desk, available_now

DRIVER = Path(__file__).parent / "crash_driver.py"

FEW = [("write", 1), ("commit", 1), ("mark", 2), ("committed", 2)]
"""Before tasks write anything; when all but the commit is done; when the driver has written its
rows; when all is done, and Spark not told."""

ALL = [(step, 1) for step in ("take over", "begin", "write", "mark", "commit", "committed")]
ALL += [(step, 2) for step, _ in ALL[1:]]

STEPS = ALL if os.environ.get("SCRIBA_CHAOS") else FEW


def die(desk: Desk, source: str, target: str, checkpoint: str, step: str, batch: int) -> None:
    """Runs a driver that kills itself before this step of a batch."""
    words = [desk.broker.bootstrap, source, target, checkpoint, step, str(batch), JAVA]
    command = [sys.executable, str(DRIVER), *words]
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert child.wait(1000) == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.parametrize(("step", "batch"), STEPS)
def test_a_killed_driver_neither_loses_nor_repeats_a_row(
    desk: Desk, new_topic: Callable[[], str], step: str, batch: int
) -> None:
    source, target = new_topic(), new_topic()
    desk.create(source, 2)
    desk.create(target, 2)
    values = [f"{n:03}" for n in range(120)]
    desk.fill(source, {0: values[::2], 1: values[1::2]})
    checkpoint = desk.checkpoint()
    die(desk, source, target, checkpoint, step, batch)
    sink = ExactlyOnceSink({**desk.kafka, "topic": target})
    available_now(desk.stream(source, maxOffsetsPerTrigger="50"), checkpoint, sink)
    written = desk.read(target, **{"kafka.isolation.level": "read_committed"})
    assert desk.values(written) == values
