"""`scriba up --ephemeral --json`: a broker for the tests of programs in any language."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tools.kafka.broker_fixtures import eventually

SCRIBA = [sys.executable, "-m", "scriba", "up", "--ephemeral", "--json"]


@contextmanager
def started(*words: str, **how: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    how.setdefault("stdin", subprocess.PIPE)
    with subprocess.Popen([*SCRIBA, *words], stdout=subprocess.PIPE, text=True, **how) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()  # not killed: it has to remove its data
            process.wait(300)


def gone(data: str) -> bool:
    return not os.path.exists(data)


def test_one_line_says_all_and_the_end_of_stdin_ends_it() -> None:
    with started() as (process, told):
        assert told.keys() == {
            "bootstrap_servers",
            "cluster_id",
            "node_id",
            "pid",
            "data",
            "version",
        }
        assert told["pid"] == process.pid
        (data,) = told["data"]
        assert os.path.isdir(data)
        producer = Producer({"bootstrap.servers": told["bootstrap_servers"]})
        producer.produce("t", b"v")
        assert producer.flush(60) == 0
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(300) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert gone(data)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_nothing_is_left(number: signal.Signals) -> None:
    with started() as (process, told):
        process.send_signal(number)
        assert process.wait(300) == 0
        assert gone(told["data"][0])


def test_it_ends_with_its_parent() -> None:
    """Also where standard input is nobody's: a terminal, a file, /dev/null."""
    program = (
        "import subprocess, sys, time\n"
        f"process = subprocess.Popen({SCRIBA}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)\n"
        "sys.stdout.buffer.write(process.stdout.readline())\n"
        "sys.stdout.flush()\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        os.kill(told["pid"], 0)
        parent.kill()
    eventually(lambda: gone(told["data"][0]))
    eventually(lambda: not Path(f"/proc/{told['pid']}").exists())


def test_no_pipe_on_standard_input_is_no_reason_to_end() -> None:
    with started(stdin=subprocess.DEVNULL) as (process, _):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(300) == 0


def test_what_is_written_to_it_is_left_alone() -> None:
    """The pipe may be the parent's own input, handed on."""
    reading, writing = os.pipe()
    with started(stdin=reading) as (process, _):
        os.write(writing, b"for somebody else")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert os.read(reading, 100) == b"for somebody else"
        os.close(writing)
        assert process.wait(300) == 0
    os.close(reading)


def test_several_have_each_their_own() -> None:
    with started() as (_, one), started() as (_, two):
        assert one["bootstrap_servers"] != two["bootstrap_servers"]
        assert one["data"] != two["data"]


def test_port_and_settings_may_be_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with started("--port", str(port), "--set", "num.partitions=3") as (_, told):
        assert told["bootstrap_servers"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "here"], "drop --data"),
        (["--set", "log.dirs=here"], "log.dirs is set (--set log.dirs=here)"),
    ],
)
def test_data_with_a_place_is_no_ephemeral_data(words: list[str], told: str) -> None:
    done = subprocess.run(
        [*SCRIBA, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "--ephemeral" in done.stderr
    assert told.partition(" (")[0] in done.stderr
    assert not os.path.exists("here")


def test_json_goes_with_any_node(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scriba", "up", "--json", "--port", "0"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["data"] == [str(tmp_path)]
        process.terminate()
        assert process.wait(300) == 0
    assert (tmp_path / "meta.properties").exists()
