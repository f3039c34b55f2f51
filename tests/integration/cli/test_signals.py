"""What a command that is stopped leaves behind: nothing that it took and did not pass on."""

import array
import contextlib
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import scriba.testing
from tests.integration.commands import PATIENCE, Scriba, begin, start
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker

STOPS = [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]


def count(scriba: Scriba, topic: str) -> int:
    return len(scriba("consume", topic, "--exit").text.splitlines())


def records(scriba: Scriba, topic: str) -> int:
    (found,) = [t for t in scriba("topic", "list", "--json").json if t["topic"] == topic]
    number: int = found["records"]
    return number


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_produce_that_is_stopped_writes_all_that_it_was_given(
    cluster: Broker, scriba: Scriba, topic: str, number: signal.Signals, code: int
) -> None:
    """A linger that never ends keeps all of it in the producer until the signal comes."""
    scriba("topic", "create", topic, "-p", "2")
    words = ["produce", topic, "-X", "linger.ms=100000", "-X", "batch.size=1000000"]
    with start(cluster, *words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(b"%d\n" % n for n in range(3000)))
        process.stdin.flush()
        eventually(lambda: has_read_all(process.pid))
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
        assert process.stderr is not None
        assert process.stderr.read() == b""
    read = scriba("consume", topic, "--exit").text.split()
    assert sorted(map(int, read)) == list(range(3000))


def has_read_all(pid: int) -> bool:
    """Whether nothing lies in the standard input of a process, a pipe or a terminal."""
    left = array.array("i", [0])
    source = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(source, termios.FIONREAD, left)
    finally:
        os.close(source)
    return left[0] == 0


def test_what_lies_in_the_pipe_when_the_signal_comes_is_written_too(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    with start(cluster, "produce", topic, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        eventually(lambda: records(scriba, topic) == 1)
        process.send_signal(signal.SIGSTOP)
        process.stdin.write(b"second\nthird\nhalf a li")
        process.stdin.flush()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE) == 143
        assert process.stderr is not None
        assert process.stderr.read() == (
            b"warning: the last line had no end and was not sent (9 B)\n"
        )
    assert scriba("consume", topic, "--exit").text == "first\nsecond\nthird\n"


def test_produce_that_is_stopped_before_it_reaches_a_broker_says_that_it_read_nothing() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        port = nobody.getsockname()[1]
        with begin(f"127.0.0.1:{port}", "produce", "t", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"first\n")
            process.stdin.flush()
            assert b"waiting: " in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
            told = process.stderr.read().decode()
    assert told.startswith("warning: nothing was read, and nothing written: ")
    assert str(port) in told


def test_a_file_is_left_where_it_was_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%09d\n" % n for n in range(500_000)))
    with scriba.testing.broker() as broker:
        broker.create_topic("t")
        broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=1_000_000)
        words = ["produce", "t", str(file), "-X", "buffer.memory=300000"]
        with begin(broker.bootstrap_servers, *words) as process:
            assert process.stderr is not None
            assert b"waiting: t-0: NOT_ENOUGH_REPLICAS" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
            told = process.stderr.read().decode()
        assert broker.records("t") == []
    assert "records that were read were not written: t-0: NOT_ENOUGH_REPLICAS" in told
    assert "\n0 records, " in told


def test_a_line_that_waits_for_room_is_written_once_to_each_topic() -> None:
    """The signal comes when one topic has got the line and there is no room for the other's."""
    line = b"x" * 60_000
    with scriba.testing.broker() as broker:
        for topic in ("a", "b"):
            broker.create_topic(topic)
        broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=1_000_000)
        words = ["produce", "a", "b", "-X", "buffer.memory=100000"]
        with begin(broker.bootstrap_servers, *words, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert b"waiting: a-0: NOT_ENOUGH_REPLICAS" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            broker.clear_faults()
            assert process.wait(PATIENCE) == 143
        for topic in ("a", "b"):
            assert [record.value for record in broker.records(topic)] == [line]


def test_a_second_signal_waits_for_nothing() -> None:
    with scriba.testing.broker() as broker:
        broker.create_topic("t")
        broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=1_000_000)
        with begin(broker.bootstrap_servers, "produce", "t", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"a\n")
            process.stdin.flush()
            assert b"waiting: " in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) in (143, 130)
            assert process.stderr.read() == b""


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_consume_that_is_stopped_commits_and_leaves_its_group(
    cluster: Broker, scriba: Scriba, topic: str, number: signal.Signals, code: int
) -> None:
    scriba("topic", "create", topic)
    fill(cluster, topic, 10)
    with start(cluster, "consume", topic, "--group", topic) as process:
        assert process.stdout is not None
        for n in range(10):
            assert process.stdout.readline() == b"%d\n" % n
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
        assert process.stderr is not None
        assert process.stderr.read() == b""
    (group,) = scriba("group", "describe", topic, "--json").json
    assert (group["state"], group["members"], group["lag"]) == ("Empty", [], 0)
    assert [p["committed"] for p in group["partitions"]] == [10]


def fill(cluster: Broker, topic: str, number: int) -> None:
    with start(cluster, "produce", topic, stdin=subprocess.PIPE) as process:
        process.communicate(b"".join(b"%d\n" % n for n in range(number)), PATIENCE)
        assert process.returncode == 0


def test_a_signal_that_is_ignored_stays_ignored(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    """As under nohup."""
    scriba("topic", "create", topic)
    environment = os.environ | {"SCRIBA_BOOTSTRAP": cluster.bootstrap}
    command = ["nohup", sys.executable, "-m", "scriba", "produce", topic]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        eventually(lambda: records(scriba, topic) == 1)
        process.send_signal(signal.SIGHUP)
        process.stdin.write(b"two\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert count(scriba, topic) == 2


def test_a_reader_that_leaves_ends_a_consumer_that_waits_for_records(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    """Also when nothing comes that could not be written; what was written is committed."""
    scriba("topic", "create", topic)
    fill(cluster, topic, 3)
    with start(cluster, "consume", topic, "--group", topic) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    (group,) = scriba("group", "describe", topic, "--json").json
    assert (group["members"], [p["committed"] for p in group["partitions"]]) == ([], [3])


def test_a_command_that_waits_for_an_answer_is_stopped(cluster: Broker) -> None:
    with start(cluster, "txn", "list", "-b", "127.0.0.1:1", "--timeout", "200") as process:
        assert process.stderr is not None
        assert b"Connection refused" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
        assert process.stderr.read() == b""


# -- a terminal ----------------------------------------------------------------------------------


@contextlib.contextmanager
def at_a_terminal(cluster: Broker, *words: str) -> Iterator[tuple[int, int]]:
    """A command at a terminal of its own: its process and the terminal's other side."""
    process, terminal = pty.fork()
    if process == 0:
        environment = os.environ | {"SCRIBA_BOOTSTRAP": cluster.bootstrap, "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-m", "scriba", *words], environment)
    try:
        yield process, terminal
    finally:
        for end in (partial(os.close, terminal), partial(os.kill, process, signal.SIGKILL)):
            with contextlib.suppress(OSError):
                end()


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 4096)
    return seen


def exit_code(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("key", "code"), [(b"\x03", 130), (b"\x04", 0)])
def test_lines_typed_at_a_terminal_are_written_whatever_ends_them(
    cluster: Broker, scriba: Scriba, topic: str, key: bytes, code: int
) -> None:
    scriba("topic", "create", topic)
    with at_a_terminal(cluster, "produce", topic) as (process, terminal):
        read_until(terminal, b"Ctrl-D ends the input")
        os.write(terminal, b"typed\n")
        if code:  # the terminal drops at Ctrl-C what nobody has read yet
            eventually(lambda: records(scriba, topic) == 1)
        os.write(terminal, key)
        with contextlib.suppress(OSError):
            read_until(terminal, b"never comes")
        assert exit_code(process) == code
    assert scriba("consume", topic, "--exit").text == "typed\n"


def test_a_window_that_is_closed_ends_a_member_properly(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    """SIGHUP, and nowhere to write to any more."""
    scriba("topic", "create", topic)
    fill(cluster, topic, 4)
    with at_a_terminal(cluster, "consume", topic, "--group", topic) as (process, terminal):
        read_until(terminal, b"3\r\n")
        os.close(terminal)
        assert exit_code(process) == 129
    (group,) = scriba("group", "describe", topic, "--json").json
    assert (group["members"], [p["committed"] for p in group["partitions"]]) == ([], [4])
