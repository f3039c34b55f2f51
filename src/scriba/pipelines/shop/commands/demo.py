"""`scriba demo`: a shop in real time on this machine, all of its parts started and ended together.

    broker ──▶ generator, pipeline, dashboard ──▶ first figures on the page ──▶ Ctrl-C

Each part is a child in a process group of its own, so that Ctrl-C reaches only this process, which
then ends the parts in their order: those that write first, the broker last. What parts say goes to
a file each. A part that ends by itself ends the demo. Without what Spark needs, the broker runs
alone.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from scriba.cli.problems import CommandError
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.topics import RUNNING
from scriba.runtime.loop.loop import run as run_loop
from scriba.spark import classes
from scriba.spark.doctor import examine

START_SECONDS: Final = 240.0
STOP_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.5
LAST_LINES: Final = 12
ARCHIVE_VARIABLE: Final = "SCRIBA_SPARK_CLASSES"
"""Names a file for the archive of Spark's classes, made after a demo that ran (spark/classes)."""
HOST: Final = "127.0.0.1"
NEVER: Final = r"(?!)"
"""For a part that has nothing to say."""


class Part:
    """One child: its process, what it said, and the words by which it is known to be ready."""

    def __init__(self, name: str, folder: Path, ready: str) -> None:
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._pattern = re.compile(ready)
        self._said: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    async def launch(self, *words: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scriba", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._pump = asyncio.create_task(self._keep(self._said))

    async def ready(self) -> str:
        """What it said when it was ready."""
        try:
            said = await asyncio.wait_for(asyncio.shield(self._said), START_SECONDS)
        except TimeoutError:
            told = f"the {self.name} did not start in time"
            raise CommandError(told, f"see {self.log}") from None
        if said is None:
            raise self.ended()
        return said

    async def _keep(self, said: "asyncio.Future[str | None]") -> None:
        """Copies what it says to its file; ends when it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("ab") as out:
            async for line in self._process.stdout:
                out.write(line)
                out.flush()
                found = self._pattern.search(line.decode(errors="replace"))
                if found and not said.done():
                    said.set_result(found[1] if found.lastindex else found[0])
        if not said.done():
            said.set_result(None)

    def ended(self) -> CommandError:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        for line in lines:
            print(f"  | {line}", file=sys.stderr)
        return CommandError(f"the {self.name} has ended", f"see {self.log}")

    async def wait(self) -> None:
        """Until it has ended by itself."""
        assert self._pump is not None
        await asyncio.wait({self._pump})

    async def stop(self) -> None:
        """Asks it to end, and after a while does not ask; nothing of its group stays behind."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._pump is not None:
            await self._pump


def run(options: argparse.Namespace) -> int:
    folder = Path(options.dir).resolve()
    # While these are looked at, nothing runs yet, so that a fix is read before it scrolls away.
    missing = [f for f in examine("local[*]", False, False) if not f.well and not f.optional]
    _check_port("--port", options.port)
    if not missing:
        _check_port("--page-port", options.page_port)
    return run_loop(_demo(options, folder, [f"{f.subject}: {f.found}; {f.fix}" for f in missing]))


def _check_port(option: str, port: int) -> None:
    """A taken one is told with the word that changes it, before anything was started."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as taken:
            told = f"{HOST}:{port}: {taken.strerror}"
            raise CommandError(told, f"name another port with {option}, or 0 for any") from taken


async def _demo(options: argparse.Namespace, folder: Path, missing: Sequence[str]) -> int:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    parts: list[Part] = []
    all_ran = asyncio.Event()
    work = asyncio.create_task(_start(options, folder, missing, parts, all_ran))
    waiting = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        work.cancel()
        waiting.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)
        say("stopping", ", ".join(part.name for part in reversed(parts)))
        # Those that write together, then the broker, which has then nothing left to refuse.
        await asyncio.gather(*(part.stop() for part in parts[1:]))
        for part in parts[:1]:
            await part.stop()
        archive = os.environ.get(ARCHIVE_VARIABLE)
        if archive and all_ran.is_set() and classes.keep(Path(archive)):
            say("next time", "starts sooner: Spark's classes are archived in the background")
    return 0


async def _start(
    options: argparse.Namespace,
    folder: Path,
    missing: Sequence[str],
    parts: list[Part],
    all_ran: asyncio.Event,
) -> None:
    """Starts everything, tells how far it is, and goes on until a part ends by itself."""
    began = time.monotonic()
    fresh = not (folder / "checkpoints").exists()

    async def launch(name: str, ready: str, *words: str) -> Part:
        part = Part(name, folder, ready)
        parts.append(part)
        await part.launch(*words)
        return part

    data = str(folder / "data")
    up = ("up", "--demo", "--data", data, "--port", str(options.port))
    broker = await launch("broker", r"listening on (\S+)", *up)
    address = await broker.ready()
    say("broker", f"{address}, data in {data}")
    if missing:
        for each in missing:
            say("pipeline", f"cannot run here: {each}")
        say("stop", "Ctrl-C; the broker runs alone")
        await broker.wait()
        raise broker.ended()
    java = f"spark.driver.extraJavaOptions={' '.join(_java())}"
    places = ("-b", address, "--checkpoints", str(folder / "checkpoints"), "--spark", java)
    pipeline = await launch("pipeline", r"^\w+, .* on (\S+)", "shop", "run", *places)
    page = ("-b", address, "--port", str(options.page_port))
    dashboard = await launch("dashboard", r"dashboard on (\S+)", "shop", "dashboard", *page)
    past = ("--backfill", options.backfill) if fresh else ()
    stream = ("-b", address, "--rate", str(options.rate), *past)
    await launch("generator", NEVER, "shop", "generate", *stream)
    say("generator", f"{options.rate} events a second")
    say("dashboard", link := await dashboard.ready())
    say("stop", f"Ctrl-C; what the parts say is in {folder / 'logs'}")
    say("pipeline", f"Spark runs on {await pipeline.ready()}")
    ends = [asyncio.create_task(part.wait()) for part in parts]
    figures = asyncio.create_task(_told(link, began, all_ran))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (figures, *ends):
            task.cancel()
    raise next(part for part, end in zip(parts, ends, strict=True) if end.done()).ended()


def _java() -> list[str]:
    """Makes for a quick start: figures soon matter more here than many of them later."""
    archive = os.environ.get(ARCHIVE_VARIABLE)
    shared = classes.options(Path(archive)) if archive else []
    return ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *shared]


async def _told(link: str, began: float, all_ran: asyncio.Event) -> None:
    """Says when the page shows its first figures, and when every query has had a batch."""
    since = (time.time() - (time.monotonic() - began)) * 1000

    def figures(picture: dict[str, Any]) -> bool:
        return picture["figures_at"] is not None

    def all_run(picture: dict[str, Any]) -> bool:
        own = [q for q in picture["queries"] if q["updated"] >= since]
        return {q["query"] for q in own if q["state"] == RUNNING} >= set(topics.QUERIES)

    async def until(seen: Callable[[dict[str, Any]], bool]) -> str:
        while True:
            if await asyncio.to_thread(_shown, link, seen):
                return f"{time.monotonic() - began:.0f} s after the start"
            await asyncio.sleep(LOOK_SECONDS)

    others = len(topics.QUERIES) - 1
    say("figures", f"on the page, {await until(figures)}; {others} more queries begin, one by one")
    say("pipeline", f"all {len(topics.QUERIES)} queries run, {await until(all_run)}")
    all_ran.set()


def _shown(link: str, seen: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        with urllib.request.urlopen(f"{link}/picture", timeout=10) as answer:
            return seen(json.load(answer))
    except (OSError, ValueError):
        return False


def say(part: str, text: str) -> None:
    print(f"  {part:<10} {text}", flush=True)
