"""`scriba up` as a person types it: what it prints, what it takes, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("KAFKA_")}
PATIENCE = 300


class Running:
    """A node that has printed its banner."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("  stop:"):
                break
        self.banner = "".join(lines)
        assert "  stop:" in self.banner, f"did not start: {self.banner} {self.rest()}"

    @property
    def address(self) -> str:
        return self.found(r"listening on (\S+)")

    @property
    def cluster_id(self) -> str:
        return self.found(r"of cluster (\S+)")

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.banner)
        assert match, self.banner
        return match[1]

    def rest(self) -> tuple[str, str]:
        return self.process.communicate(timeout=PATIENCE)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.said_last, self.errors = self.rest()
        return self.process.returncode

    def describe(self, name: str, *, topic: str | None = None) -> str:
        kind = ResourceType.TOPIC if topic else ResourceType.BROKER
        resource = ConfigResource(kind, topic or "1")
        admin = AdminClient({"bootstrap.servers": self.address})
        [answer] = admin.describe_configs([resource]).values()
        value: str = answer.result(PATIENCE)[name].value
        return value


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "scriba", "up", *arguments]


@contextmanager
def up(data: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    process = subprocess.Popen(
        command("--data", str(data), "--port", "0", *arguments),
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: str, cwd: Path, code: int = 1, **environment: str) -> str:
    """The one line of a start that fails."""
    outcome = subprocess.run(
        command(*arguments),
        env=ENVIRONMENT | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert outcome.returncode == code, outcome
    assert outcome.stdout == ""
    [line] = outcome.stderr.splitlines()
    assert line.startswith("scriba: ")
    return line.removeprefix("scriba: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_and_ends_cleanly_when_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    with up(tmp_path / "data") as node:
        assert f"data in {tmp_path / 'data'}" in node.banner
        assert not node.address.endswith(":0")
        assert node.end(number) == 0
        assert node.said_last == "stopping\n"
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_node_whose_files_were_closed_serves_and_ends_cleanly(tmp_path: Path) -> None:
    """As a daemon is started by hand: none of its sockets may be taken for one of the three."""
    line = " ".join(command("--data", str(tmp_path / "data"), "--port", "0", "--verbose"))
    ready = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(ready))
        supervisor.settimeout(PATIENCE)
        environment = ENVIRONMENT | {"NOTIFY_SOCKET": str(ready)}
        with subprocess.Popen(["sh", "-c", f"exec {line} <&- >&- 2>&-"], env=environment) as node:
            try:
                assert supervisor.recv(100) == b"READY=1"
                node.send_signal(signal.SIGTERM)
                assert node.wait(PATIENCE) == 0
            finally:
                node.kill()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("words", [[], ["--nodes", "2"]], ids=["one", "several"])
def test_a_node_without_its_extension_says_what_that_costs(
    tmp_path: Path, words: list[str]
) -> None:
    line = (
        "  native extension is switched off by SCRIBA_NATIVE=0: records are handled in Python, "
        "several times slower; unset SCRIBA_NATIVE\n"
    )
    with up(tmp_path / "data", *words, SCRIBA_NATIVE="0") as node:
        assert node.banner.count(line) == 1
        assert node.end(signal.SIGTERM) == 0


def test_a_node_with_its_extension_says_nothing_of_it(tmp_path: Path) -> None:
    with up(tmp_path / "data", SCRIBA_NATIVE="1") as node:
        assert "native extension" not in node.banner
        assert node.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("abstract", [False, True])
def test_supervisor_is_told_when_it_serves_and_when_it_stops(
    tmp_path: Path, abstract: bool
) -> None:
    name = f"@scriba-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + name[1:] if abstract else name)
        supervisor.settimeout(PATIENCE)
        with up(tmp_path / "data", NOTIFY_SOCKET=name) as node:
            assert supervisor.recv(100) == b"READY=1"
            AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=PATIENCE)
            assert node.end(signal.SIGTERM) == 0
            assert supervisor.recv(100) == b"STOPPING=1"


def test_the_lines_of_the_banner_work_when_pasted(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--demo") as node:
        path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
        run: dict[str, Any] = {
            "shell": True,
            "capture_output": True,
            "text": True,
            "timeout": PATIENCE,
        }
        run["env"] = ENVIRONMENT | {"PATH": path}
        produced = subprocess.run(node.found("produce:  (.*)"), check=True, **run)
        consumed = subprocess.run(node.found("consume:  (.*)"), check=True, **run)
        assert consumed.stdout == "hello\n", produced


def test_a_restart_is_the_same_cluster_with_the_same_topics(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--demo") as node:
        first = node.cluster_id
        assert node.end(signal.SIGTERM) == 0
    with up(tmp_path / "data", "--demo") as node:
        assert node.cluster_id == first
        topics = AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=PATIENCE)
        assert len(topics.topics["demo"].partitions) == 3


def test_arguments_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=1\nmessage.max.bytes=1000\n")
    arguments = ["--config", str(file), "--set", "num.partitions=4"]
    with up(
        tmp_path / "data", *arguments, KAFKA_NUM_PARTITIONS="3", KAFKA_MESSAGE_MAX_BYTES="2000"
    ) as node:
        assert node.describe("num.partitions") == "4"
        assert node.describe("message.max.bytes") == "2000"
        assert node.describe("log.retention.hours") == "1"


def test_kafkas_own_keys_without_meaning_are_noted_in_one_line(tmp_path: Path) -> None:
    with up(
        tmp_path / "data", "--set", "num.network.threads=3", "--set", "num.io.threads=8"
    ) as node:
        node.end(signal.SIGTERM)
        notes = [line for line in node.errors.splitlines() if line.startswith("note: ")]
        assert notes == [
            "note: without a meaning here, ignored: num.network.threads, num.io.threads"
        ]


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (
            2,
            ["--set", "log.segmnt.bytes=1"],
            "log.segmnt.bytes: no such setting; did you mean log.segment.bytes? "
            "(--set log.segmnt.bytes)",
        ),
        (
            2,
            ["--set", "num.partitions=0"],
            "num.partitions=0: must be at least 1 (--set num.partitions)",
        ),
        (
            1,
            ["--config", "nowhere"],
            "--config nowhere: No such file or directory; name a readable file",
        ),
        (
            2,
            ["--port", "1", "--set", "listeners=PLAINTEXT://127.0.0.1:2"],
            "--port: listeners is set too (--set listeners); drop one",
        ),
    ],
)
def test_a_bad_word_stops_the_start_and_touches_nothing(
    tmp_path: Path, code: int, arguments: list[str], line: str
) -> None:
    assert refused(*arguments, cwd=tmp_path, code=code) == line
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_key_in_a_file_or_variable_is_pointed_at(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a file\nnum.partitons=3\n")
    assert refused("--config", file.name, cwd=tmp_path).endswith(
        "did you mean num.partitions? (server.properties, line 2)"
    )
    assert refused(cwd=tmp_path, KAFKA_NUM_PARTITONS="3").endswith(
        "did you mean num.partitions? (environment variable KAFKA_NUM_PARTITONS)"
    )


def test_a_taken_port_is_named_and_the_directory_left_alone(tmp_path: Path) -> None:
    with up(tmp_path / "data") as node:
        port = node.address.rpartition(":")[2]
        line = refused("--data", "other", "--port", port, cwd=tmp_path)
        assert f"127.0.0.1:{port}" in line
        assert "--port" in line
    assert not (tmp_path / "other").exists()


def test_a_directory_in_use_is_refused_while_its_node_goes_on(tmp_path: Path) -> None:
    with up(tmp_path / "data") as node:
        line = refused("--data", "data", "--port", "0", cwd=tmp_path)
        assert str(tmp_path / "data") in line or "data" in line
        assert "another" in line
        assert node.describe("num.partitions") == "1"


def test_the_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with up(tmp_path / name) as node:
            assert node.end(signal.SIGTERM) == 0
    before = (tmp_path / "a" / "meta.properties").read_bytes()
    assert "node.id" in refused("--data", "a", "--port", "0", "--set", "node.id=2", cwd=tmp_path)
    assert "cluster" in refused("--data", "a,b", "--port", "0", cwd=tmp_path)
    assert (tmp_path / "a" / "meta.properties").read_bytes() == before


def test_checks_may_not_be_switched_off(tmp_path: Path) -> None:
    assert "PYTHONOPTIMIZE" in refused(cwd=tmp_path, PYTHONOPTIMIZE="1")


def test_an_open_bind_needs_a_word_of_consent(tmp_path: Path) -> None:
    line = refused("--set", "listeners=PLAINTEXT://0.0.0.0:0", cwd=tmp_path, code=2)
    assert "scriba.allow.insecure.bind=true" in line


def test_the_banner_shows_the_address_that_is_bound(tmp_path: Path) -> None:
    everywhere = ["--set", "listeners=PLAINTEXT://0.0.0.0:0"]
    everywhere += ["--set", "advertised.listeners=PLAINTEXT://127.0.0.1:0"]
    process = subprocess.Popen(
        command("--data", str(tmp_path), "--set", "scriba.allow.insecure.bind=true", *everywhere),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        node = Running(process)
        port = node.found(r"listening on 0\.0\.0\.0:(\d+), every address of this machine")
        assert int(port) > 0
        assert node.found(r"produce:  .* -b 127\.0\.0\.1:(\d+)") == port
    finally:
        process.kill()
        process.communicate()


def test_an_address_of_another_machine_is_told_with_its_cure(tmp_path: Path) -> None:
    listeners = "listeners=PLAINTEXT://203.0.113.7:9092"
    line = refused("--set", listeners, "--set", "scriba.allow.insecure.bind=true", cwd=tmp_path)
    assert line.endswith("; this machine has no such address; name one it has in listeners")


STUBBORN = """
import asyncio
from scriba.cli.node.up import listen_to_signals

async def main():
    life = asyncio.get_running_loop().create_future()
    listen_to_signals(life)
    print("ready", flush=True)
    try:
        await life
    except asyncio.CancelledError:
        print("stopping", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_second_ctrl_c_does_not_wait_for_the_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for said in ("ready\n", "stopping\n"):
            assert process.stdout.readline() == said
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + signal.SIGINT
