"""Spark Connect: the program is a client, and the sink runs beside the server."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.spark.desk import JAVA, Topics

DRIVER = Path(__file__).parent / "connect_driver.py"


def test_a_stream_is_written_once_by_way_of_spark_connect(
    topics: Topics, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    source, once, often = new_topic(), new_topic(), new_topic()
    topics.create(source, 2)
    topics.create(once, 3)
    topics.create(often, 1)
    values = [f"{n:02}" for n in range(60)]
    topics.fill(source, {0: values[::2], 1: values[1::2]})
    words = [topics.broker.bootstrap, source, once, often, str(tmp_path), JAVA]
    done = subprocess.run(
        [sys.executable, str(DRIVER), *words],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "checkpointLocation: is needed with Spark Connect" in told["without a checkpoint"]
    assert "crashed after the commit" in told["crashed"]
    assert (told["again"], told["often"]) == (None, None)
    assert told["values"] == values
    assert (tmp_path / "on-driver").exists()  # the last batch
