"""`scriba demo` as `make run` starts it: figures arrive, and nothing is left when it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.webdriver import Browser

PATIENCE = 300
DEMO = [sys.executable, "-m", "scriba", "demo", "--port", "0", "--page-port", "0"]
PLAIN = {name: text for name, text in os.environ.items() if not name.startswith("KAFKA_")}


class Demo:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said = ""

    def until(self, pattern: str) -> str:
        """Reads on to a line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(pattern, line):
                return found[1] if found.lastindex else found[0]
        raise AssertionError(f"it never said {pattern!r}: {self.said}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        self.said += rest
        return self.process.returncode


@contextmanager
def demo(folder: Path, *arguments: str, **environment: str) -> Iterator[Demo]:
    process = subprocess.Popen(
        [*DEMO, "--dir", str(folder), *arguments],
        env=PLAIN | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Demo(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def family(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """One that has ended, and that nobody has asked how, is still listed."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which only Python is found."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    return {"PATH": str(programs), "JAVA_HOME": ""}


def test_first_figures_reach_the_page_and_ctrl_c_ends_every_part(
    tmp_path: Path, screen: Browser
) -> None:
    archive = tmp_path / "classes.jsa"
    asked = {"SCRIBA_SPARK_CLASSES": str(archive)}
    with demo(tmp_path / "demo", "--backfill", "1m", "--rate", "50", **asked) as shop:
        page = shop.until(r"dashboard +(http://\S+)")
        shop.until(r"figures +on the page, \d+ s after the start")
        screen.open(page)
        screen.until("#badge", "Live", PATIENCE)
        screen.until("#revenue", r"[1-9]", PATIENCE)
        with urllib.request.urlopen(f"{page}/picture", timeout=PATIENCE) as answer:
            assert json.load(answer)["reading"]["strange"] == 0
        shop.until(r"pipeline +all \d queries run")
        assert not archive.exists(), "nothing is archived while somebody looks at the page"
        children = family(shop.process.pid)
        assert len(children) >= 4
        assert shop.end(signal.SIGINT) == 0
    deadline = time.monotonic() + PATIENCE
    while not gone(children):
        assert time.monotonic() < deadline, "something of the demo still runs"
        time.sleep(0.05)
    assert "Spark's classes are archived in the background" in shop.said
    while not archive.exists():
        assert time.monotonic() < deadline, archive.with_suffix(".log").read_text()
        time.sleep(0.05)
    assert (tmp_path / "demo" / "data" / ".kafka_cleanshutdown").exists()


def test_without_java_it_says_so_and_runs_the_broker_alone(tmp_path: Path) -> None:
    with demo(tmp_path / "demo", **without_java(tmp_path)) as shop:
        address = shop.until(r"broker +(127\.0\.0\.1:\d+)")
        assert "install a JDK" in shop.until("pipeline +cannot run here: java: not found.*")
        shop.until("the broker runs alone")
        listed = [sys.executable, "-m", "scriba", "topic", "list", "-b", address]
        told = subprocess.run(listed, capture_output=True, text=True, check=True)
        assert "demo" in told.stdout
        assert shop.end(signal.SIGTERM) == 0
    assert (tmp_path / "demo" / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("option", ["--port", "--page-port"])
def test_a_taken_port_is_told_with_the_option_that_changes_it(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(tmp_path / "demo", option, str(port)) as shop:
            told = shop.until("scriba: .*")
            assert told == (
                f"scriba: 127.0.0.1:{port}: Address already in use; name another port with "
                f"{option}, or 0 for any"
            )
            assert shop.process.wait(PATIENCE) == 1
    assert not (tmp_path / "demo").exists()


def test_a_part_that_ends_by_itself_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with demo(tmp_path / "demo", **without_java(tmp_path)) as shop:
        shop.until("the broker runs alone")
        [broker] = family(shop.process.pid)
        os.kill(broker, signal.SIGKILL)
        assert "broker.log" in shop.until("the broker has ended.*")
        shop.process.wait(PATIENCE)
        assert shop.process.returncode == 1
