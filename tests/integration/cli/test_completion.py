"""The completion scripts in the shells they are for, at a terminal, by the Tab key."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.commands import PATIENCE, Scriba
from tools.kafka.brokers import Broker

READY = "ready-to-type"
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
PREPARE = {
    "bash": "PS1='> '; bind 'set enable-bracketed-paste off'; bind 'set bell-style none'",
    "zsh": "PS1='> '; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D -u",
}


class Terminal:
    """A shell that has read its script, before which somebody sits."""

    def __init__(self, shell: str, environment: dict[str, str]) -> None:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.execvpe(SHELLS[shell][0], SHELLS[shell], environment)
        # Wide enough that no line is wrapped.
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 400, 0, 0))
        # What is typed is echoed, so that the word has to be one that only the shell writes.
        typed = (
            f'{PREPARE[shell]}; eval "$(scriba completion {shell})"; echo {READY[:6]}""{READY[6:]}'
        )
        os.write(self._terminal, typed.encode() + b"\n")
        self.read_until(READY)

    def complete(self, line: str, wanted: str) -> str:
        """What the line looks like after Tab, once this is in it."""
        os.write(self._terminal, line.encode() + b"\t")
        return self.read_until(wanted)

    def read_until(self, wanted: str) -> str:
        seen = ""
        deadline = time.monotonic() + PATIENCE
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self._terminal], [], [], 1)[0]:
                seen += os.read(self._terminal, 4096).decode(errors="replace")
                seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]", "", seen)
        return seen

    def close(self) -> None:
        os.close(self._terminal)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


@pytest.fixture
def sit_down(cluster: Broker, tmp_path: Path) -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def sit(shell: str) -> Terminal:
        opened.append(Terminal(shell, environment(cluster, tmp_path)))
        return opened[-1]

    yield sit
    for terminal in opened:
        terminal.close()


def environment(cluster: Broker, home: Path) -> dict[str, str]:
    here = Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{here}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "SCRIBA_BOOTSTRAP": cluster.bootstrap,
        "TERM": "xterm",
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_options_and_names(
    sit_down: Callable[[str], Terminal], scriba: Scriba, topic: str, shell: str
) -> None:
    name = f"read-by-{shell}-{topic}"
    scriba("topic", "create", name)
    sit_down(shell).complete("scriba topic cre", "create ")
    sit_down(shell).complete("scriba produce t --compr", "--compression ")
    sit_down(shell).complete("scriba produce t --compression sna", "snappy ")
    sit_down(shell).complete(f"scriba topic describe read-by-{shell}", f"{name} ")
    sit_down(shell).complete("scriba help prof", "profile ")


def test_fish_completes_commands_options_and_names(
    cluster: Broker, scriba: Scriba, topic: str, tmp_path: Path
) -> None:
    scriba("topic", "create", topic)

    def offers(line: str) -> list[str]:
        program = f"scriba completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program],
            env=environment(cluster, tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert done.stderr == ""
        return [found.partition("\t")[0] for found in done.stdout.splitlines()]

    assert offers("scriba topic cre") == ["create"]
    assert offers("scriba produce t --compr") == ["--compression"]
    assert offers("scriba produce t --compression sna") == ["snappy"]
    assert offers("scriba topic alter x --part") == ["--partitions"]
    assert topic in offers("scriba topic describe ")
    assert "produce" not in offers("scriba topic ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_sound(shell: str, tmp_path: Path, cluster: Broker) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "scriba", "completion", shell],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    (tmp_path / "script").write_bytes(script)
    subprocess.run([shell, "-n", tmp_path / "script"], timeout=PATIENCE, check=True)
