"""What a command says while it waits, and that it goes on."""

import socket
import subprocess

import scriba.testing
from tests.integration.commands import PATIENCE, begin


def test_produce_says_what_it_waits_for_and_that_it_goes_on() -> None:
    with scriba.testing.broker() as broker:
        broker.create_topic("t")
        broker.fail_next("Produce", "KAFKA_STORAGE_ERROR", times=3)
        with begin(broker.bootstrap_servers, "produce", "t", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            told = process.stderr.readline().decode()
            assert told.startswith("note: waiting: t-0: KAFKA_STORAGE_ERROR: "), told
            assert process.stderr.readline().startswith(b"note: it goes on, after ")
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
            assert process.stderr.read() == b""
        assert [record.value for record in broker.records("t")] == [b"one"]


def test_produce_waits_for_a_broker_that_is_gone_and_says_so() -> None:
    with scriba.testing.broker() as broker:
        broker.create_topic("t")
        with begin(broker.bootstrap_servers, "produce", "t", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            while [record.value for record in broker.records("t")] != [b"one"]:
                pass
            broker.stop(kill=True)
            process.stdin.write(b"two\n")
            process.stdin.flush()
            assert b"note: waiting: " in process.stderr.readline()
            broker.start()
            line = process.stderr.readline()
            while b"waiting" in line:  # refused first, then still not there
                line = process.stderr.readline()
            assert b"it goes on" in line
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        assert [record.value for record in broker.records("t")] == [b"one", b"two"]


def test_a_refused_connection_is_told_long_before_the_time_is_over() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with begin(address, "topic", "list", "--timeout", "3600") as process:
            assert process.stderr is not None
            told = process.stderr.readline().decode()
            assert process.poll() is None, "it goes on trying"
            process.terminate()
            assert process.wait(PATIENCE) == 143
    assert told.startswith(f"note: waiting: cannot connect to {address}: Connection refused")


def test_a_coordinator_that_cannot_serve_is_told() -> None:
    with scriba.testing.broker() as broker:
        broker.produce("t", "one")
        broker.fail_next("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", times=10)
        with begin(broker.bootstrap_servers, "consume", "t", "--group", "g", "--exit") as process:
            assert process.stderr is not None
            told = process.stderr.readline().decode()
            assert told.startswith("note: waiting: group g: COORDINATOR_LOAD_IN_PROGRESS"), told
            assert process.stderr.readline().startswith(b"note: it goes on, after ")
            assert process.wait(PATIENCE) == 0
        broker.fail_next("DescribeGroups", "COORDINATOR_NOT_AVAILABLE", times=1000)
        words = ("group", "describe", "g", "--timeout", "3")
        with begin(broker.bootstrap_servers, *words) as process:
            assert process.stderr is not None
            told = process.stderr.readline().decode()
            assert "note: waiting: " in told, told
            assert "COORDINATOR_NOT_AVAILABLE" in told, told
            *_, last = process.stderr.read().decode().splitlines()
            assert "within 3000 ms: " in last, last
            assert "COORDINATOR_NOT_AVAILABLE" in last, last
            assert process.wait(PATIENCE) == 1
