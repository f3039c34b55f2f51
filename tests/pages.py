"""Pages, typed as a reader would type them: block after block, into an empty folder.

A fenced block says by its language what becomes of it:

- `console`: each line after `$ ` is a command, the lines below it are what it prints. `...` stands
  for anything; times, ids and measured numbers need only have their shape. A command has to
  succeed, unless the page shows the line `scriba: ...` with which it fails.
- `sh`: commands alone. `python`: a program, run by itself.
- any block whose first line is a comment with a file's name, `# billing.py`, is saved under it.
- any other language (`text`, `json`, `mermaid`, ...) is there to be read.

`scriba up`, a command that ends with `&` and one whose comment says "terminal" go on in terminals
of their own. One whose comment says "Ctrl-C" is stopped by it as soon as it has printed what the
page shows. What cannot be typed has `<!-- not run: the reason -->` above it, and is counted in
`NOT_RUN`.

Commands of a page that start a Spark one after the other do so in one Java (`ONE_JAVA`).

A page has a network of its own where the system allows it, so its broker is at port 9092 whatever
else runs here. The package is the one under test: `pip install` finds it in place, what is cloned
from `<address of the repository>` is this checkout, and all else comes from .cache/wheels. Pages of
`IN_A_CHECKOUT` are typed in a copy of it instead of an empty folder.
"""

import contextlib
import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from tools.kafka import kafka_jars

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if page.is_file()
)

HEAVY = (
    "docs/spark.md",
    "docs/shop.md",
    "docs/dashboard.md",
    "docs/inventory.md",
    "docs/tutorial.md",
)
"""These start a Spark."""

ONE_JAVA = ("docs/inventory.md", "docs/shop.md")
"""These start several Sparks, one after the other, in one Java process, whose start takes most of
the time. Commands in terminals of their own have their own."""

NOT_RUN = {
    "README.md": 1,
    "docs/commands.md": 1,
    "docs/installing.md": 4,
    "docs/shop.md": 2,
    "docs/spark.md": 4,
}
"""How many blocks of a page say why they are not run."""

IN_A_CHECKOUT = ("README.md",)
ADDRESS = "<address of the repository>"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
WHEELS = ROOT / ".cache" / "wheels"
TYPED = ("console", "sh", "python")
PATIENCE = 180.0
"""Seconds for one command: far more than any takes, to end one that hangs."""

FILE = re.compile(r"(?:#|//|--) ([\w./-]+\.\w+)")
REASON = re.compile(r"\s*<!-- not run: (.+) -->")
FENCE = re.compile(r"( *)```(\S*)\s*")
SHAPES = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?",) * 2,  # a time
    (r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{22}(?![\w-])", r"[\w-]{22}"),  # an id
    (r"\d[\d,]*\.\d+(?![.\d])", r"\d[\d,]*(?:\.\d+)?"),  # something measured
    (r"/home/you\S*", r"/\S+"),
    (r"\.\.\.", r".*?"),
    (r"\s+", r"\s+"),
)
LASTING = re.compile(r"scriba up\b(?!.*--help)|.*#.*\b(?:terminal|Ctrl-C)\b")
READY = {"scriba up": "stop: "}
"""What a command prints when others can rely on it, if the page does not show it."""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    """Why it is not run."""

    @property
    def file(self) -> str | None:
        found = FILE.fullmatch(self.text.partition("\n")[0])
        return found[1] if found and self.language != "console" else None


class Command(NamedTuple):
    line: int
    text: str
    shown: str

    @property
    def lasting(self) -> bool:
        return self.text.endswith("&") or LASTING.match(self.text) is not None

    @property
    def interrupted(self) -> bool:
        return "Ctrl-C" in self.text.rpartition("#")[2] and "#" in self.text


class PageError(AssertionError):
    """A page that does not hold what it says; names the line."""


def blocks(page: str, source: str | None = None) -> Iterator[Block]:
    lines = (source if source is not None else (ROOT / page).read_text()).splitlines()
    reason: str | None = None
    number = 0
    while number < len(lines):
        opened = FENCE.fullmatch(lines[number])
        if opened is None:
            if lines[number].strip():
                marked = REASON.fullmatch(lines[number])
                reason = marked[1] if marked else None
            number += 1
            continue
        end = next(
            (n for n in range(number + 1, len(lines)) if lines[n].strip() == "```"), len(lines)
        )
        inside = [
            line.removeprefix(opened[1]).replace(ADDRESS, f"{HOME}.git")
            for line in lines[number + 1 : end]
        ]
        yield Block(page, number + 2, opened[2], "\n".join(inside), reason)
        reason = None
        number = end + 1


def commands(block: Block) -> Iterator[Command]:
    """A console's commands with what they print, or a script's."""
    console = block.language == "console"
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        first = at
        text = lines[at]
        if console:
            if not text.startswith("$ "):
                raise PageError(f"{block.page}:{block.line + at}: no `$ ` before {text!r}")
            text = text[2:]
        at += 1
        while at < len(lines) and not whole(text):
            text += "\n" + (lines[at].removeprefix("> ") if console else lines[at])
            at += 1
        shown = []
        while console and at < len(lines) and not lines[at].startswith("$ "):
            shown.append(lines[at])
            at += 1
        if text.strip():
            yield Command(block.line + first, text, "\n".join(shown).strip())


def whole(text: str) -> bool:
    """Whether a shell would not wait for more."""
    if text.endswith("\\"):
        return False
    said = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return said.returncode == 0 and not said.stderr


def fits(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else like(line.strip()) + r"\n"
        for line in shown.splitlines()
    )
    lines = (line.strip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def like(line: str) -> str:
    """A pattern of what looks like a line."""
    either = "|".join(f"({shape})" for shape, _ in SHAPES)
    made, at = "", 0
    for found in re.finditer(either, line):
        made += re.escape(line[at : found.start()]) + SHAPES[(found.lastindex or 0) - 1][1]
        at = found.end()
    return made + re.escape(line[at:])


@dataclass
class Lasting:
    """A command in a terminal of its own."""

    command: Command
    pid: int
    log: Path

    def printed(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Reader:
    """Somebody at a shell, in a folder that was empty at first, or a checkout."""

    page: str
    folder: Path
    shell: subprocess.Popen[bytes]
    scratch: Path
    terminals: list[Lasting] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def sits_down(cls, page: str, place: Path) -> Iterator[Self]:
        folder, scratch = place / "folder", place / "scratch"
        for each in (folder, scratch, place / "home"):
            each.mkdir(parents=True, exist_ok=each == folder)
        with contextlib.ExitStack() as stack:
            shell = stack.enter_context(
                subprocess.Popen(
                    [*stack.enter_context(network()), "bash", "--norc", "--noprofile"],
                    cwd=folder,
                    env=environment(place),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
            reader = cls(page, folder, shell, scratch)
            try:
                reader.say("set -m")  # Ctrl-C reaches what runs in other terminals
                yield reader
            finally:
                reader.gets_up()

    def starts_java(self) -> None:
        """One Java for all commands of the page that start a Spark, one after the other."""
        program, where, log = (self.scratch / f"java.{end}" for end in ("py", "sh", "txt"))
        program.write_text(JAVA_ALONE)
        words = shlex.join([sys.executable, str(program), str(where)])
        quiet = f"</dev/null >{shlex.quote(str(log))} 2>&1"
        _, printed = self.call(f"SCRIBA_SPARK_PYTHON={sys.executable} {words} {quiet} & echo $!")
        deadline = time.monotonic() + PATIENCE
        while not where.exists():
            if not alive(int(printed.split()[-1])) or time.monotonic() > deadline:
                raise PageError(f"{self.page}: no Java for Spark\n{log.read_text()}")
            time.sleep(0.02)
        self.call(f". {shlex.quote(str(where))}")

    def types(self, block: Block) -> None:
        if block.reason is not None or (block.language not in TYPED and block.file is None):
            return
        if block.file is not None:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n")
        elif block.language == "python":
            # Blank lines before it, so that a traceback names the lines of the page.
            program = self.scratch / f"{block.page.replace('/', '.')}.{block.line}.py"
            program.write_text("\n" * (block.line - 1) + block.text + "\n")
            self.runs(Command(block.line, f"python {shlex.quote(str(program))}", ""))
        else:
            for command in commands(block):
                (self.leaves if command.lasting else self.runs)(command)

    def runs(self, command: Command) -> None:
        code, printed = self.call(f"{{ {command.text}\n}} </dev/null 2>&1")
        refused = any(line.startswith("scriba: ") for line in command.shown.splitlines())
        if (code == 0) == refused:
            raise self.wrong(command, f"ended with {code}", printed)
        if command.shown and not fits(command.shown, printed):
            raise self.wrong(command, "printed something else", printed)

    def leaves(self, command: Command) -> None:
        """Starts a command that goes on, and waits until it does what it is there for."""
        log = self.scratch / f"{len(list(self.scratch.glob('*.log')))}.log"
        log.touch()
        text = f"{OWN_JAVA}\n{command.text.removesuffix('&').rstrip()}"
        _, printed = self.call(f"{{ {text}\n}} </dev/null >{shlex.quote(str(log))} 2>&1 & echo $!")
        terminal = Lasting(command, int(printed.split()[-1]), log)
        self.terminals.append(terminal)
        deadline = time.monotonic() + PATIENCE
        while not self.ready(terminal):
            if not alive(terminal.pid):
                raise self.wrong(command, "ended by itself", terminal.printed())
            if time.monotonic() > deadline:
                raise self.wrong(command, "does not print what is shown", terminal.printed())
            time.sleep(0.02)
        if command.interrupted:
            self.interrupts(terminal)

    def ready(self, terminal: Lasting) -> bool:
        printed = terminal.printed()
        if terminal.command.shown:
            return fits(terminal.command.shown, printed)
        return all(
            sign in printed
            for start, sign in READY.items()
            if terminal.command.text.startswith(start)
        )

    def interrupts(self, terminal: Lasting) -> None:
        """Ctrl-C, after which a command has to end in peace."""
        self.terminals.remove(terminal)
        if not alive(terminal.pid):
            raise self.wrong(terminal.command, "ended by itself", terminal.printed())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGINT)
        code, _ = self.call(f"wait {terminal.pid}")
        printed = terminal.printed()
        if code not in (0, 128 + signal.SIGINT) or tracebacks(printed):
            raise self.wrong(terminal.command, f"after Ctrl-C: {code}", printed)

    def leaves_all(self) -> None:
        """Ctrl-C in every terminal, the last one first."""
        for terminal in reversed(self.terminals.copy()):
            self.interrupts(terminal)

    def call(self, text: str) -> tuple[int, str]:
        """Types into the shell; the exit code, and what it printed until then."""
        self.say(f"{text}\nprintf '\\n\\001%d\\n' $?")
        assert self.shell.stdout is not None
        printed, deadline = b"", time.monotonic() + PATIENCE
        while (found := re.search(rb"\n\x01(\d+)\n\Z", printed)) is None:
            if not select.select([self.shell.stdout], [], [], deadline - time.monotonic())[0]:
                raise PageError(f"{self.page}: does not end:\n{text}\n{printed.decode()}")
            more = os.read(self.shell.stdout.fileno(), 1 << 16)
            if not more:
                raise PageError(f"{self.page}: the shell has ended:\n{text}\n{printed.decode()}")
            printed += more
        return int(found[1]), printed[: found.start()].decode(errors="replace")

    def say(self, text: str) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write(text.encode() + b"\n")
        self.shell.stdin.flush()

    def wrong(self, command: Command, what: str, printed: str) -> PageError:
        return PageError(
            f"{self.page}:{command.line}: `{command.text}` {what}\n--- printed\n{printed}\n"
            + (f"--- shown\n{command.shown}\n" if command.shown else "")
            + "".join(f"--- {t.command.text}\n{t.printed()[-2000:]}" for t in self.terminals)
        )

    def gets_up(self) -> None:
        """Leaves nothing behind, however it went."""
        for terminal in self.terminals:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(terminal.pid, signal.SIGKILL)
        listed = ["ps", "-o", "pid=", "-s", str(self.shell.pid)]
        rest = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
        for pid in (*map(int, rest.split()), self.shell.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False)
    return bool(state.stdout.strip()) and not state.stdout.startswith(b"Z")


def environment(place: Path) -> dict[str, str]:
    """A person's: this package, Kafka's commands, and nothing of the test's own."""
    programs = place / "bin"
    programs.mkdir()
    # -P: in a checkout its own `tools` would be taken, which has no jars.
    kafka = f"env PYTHONPATH={ROOT} {sys.executable} -P -m tools.kafka"
    written = {"pip": f"{sys.executable} -m pip"}
    for tool in kafka_jars.TOOLS:
        written |= dict.fromkeys((f"kafka-{tool}", f"kafka-{tool}.sh"), f"{kafka} {tool}")
    for name, line in written.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (programs / name).chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("SCRIBA_", "KAFKA_", "PYTEST_", "PYTHON", "PYSPARK_", "PIP_", "SPARK_")
        )
    }
    return kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": quick_java(),
        "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "VIRTUAL_ENV": str(BIN.parent),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(WHEELS),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{place / 'origin'}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"{HOME}.git",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


SPARKS_OWN = ("pyspark/sql/streaming/python_streaming_source_runner.py", "pyspark/daemon.py")
"""Processes of Spark's that complain, now and then, that Java has gone before them."""


def tracebacks(printed: str) -> list[str]:
    """Those of what was printed that are not Spark's own."""
    all_of_them = printed.split("Traceback (most recent call last):")[1:]
    return [each for each in all_of_them if not any(own in each for own in SPARKS_OWN)]


def quick_java() -> str:
    """For Sparks that live for seconds: quick to start, not to run for long."""
    classes = ROOT / ".cache" / "spark" / "classes.jsa"
    shared = f" -XX:SharedArchiveFile={classes}" if classes.exists() else ""
    folder = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    return f"{folder} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss16m{shared}"


def publish(origin: Path) -> None:
    """The working tree as a repository, which a page clones or is typed in."""
    origin.mkdir(parents=True)
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), names.splitlines()):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, origin / name)
    someone = ["-c", "user.name=reader", "-c", "user.email=reader@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*someone, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=origin, check=True)


OWN_JAVA = "unset PYSPARK_GATEWAY_PORT PYSPARK_GATEWAY_SECRET"
"""Two Sparks at a time cannot be in one."""

JAVA_ALONE = """
import os, signal, sys
from pyspark.java_gateway import launch_gateway
at = launch_gateway().gateway_parameters
with open(sys.argv[1] + ".new", "w") as said:
    said.write(f"export PYSPARK_GATEWAY_PORT={at.port} PYSPARK_GATEWAY_SECRET={at.auth_token}")
os.rename(said.name, sys.argv[1])
signal.pause()
"""

ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def network() -> Iterator[list[str]]:
    """The words before a command that give it a network with its own loopback; where that cannot
    be had, none, and one page at a time has the machine's."""
    unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if shutil.which("unshare"):
        words = [*unshare, sys.executable, "-c", ALONE]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            yield words
            return
    with Path("/tmp/scriba-pages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 9092))  # the pages' broker is there
        yield []


def read(page: str, place: Path) -> None:
    """Types a whole page."""
    found = list(blocks(page))
    for block in found:
        if not block.language:
            raise PageError(f"{page}:{block.line}: a block without a language")
    if all(b.reason is not None or (b.language not in TYPED and b.file is None) for b in found):
        return
    if any(HOME in block.text for block in found):
        publish(place / "origin")
    if page in IN_A_CHECKOUT:
        publish(place / "folder")
    with Reader.sits_down(page, place) as reader:
        if page in ONE_JAVA:
            reader.starts_java()
        for block in found:
            reader.types(block)
        reader.leaves_all()
