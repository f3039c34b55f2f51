"""How a second terminal speaks to the process that runs the nodes: one line of JSON each way.

The socket lies in the nodes' directory, for its owner alone. Its path may be longer than the
hundred bytes that an address may have; then it is reached through the open directory.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from scriba.cli.output import note
from scriba.cli.problems import CommandError
from scriba.config import StartError

SOCKET_FILE: Final = "control.sock"
LOCK_FILE: Final = "cluster.lock"
LONGEST_ADDRESS: Final = 100
LONGEST_LINE: Final = 1 << 16
FORMER_S: Final = 15.0
FORMER_LOOK_S: Final = 0.05
ANSWER_S: Final = 120.0
"""A node that is started is answered for when it serves."""

Answer = dict[str, Any]


@contextlib.contextmanager
def held(data: str) -> Iterator[None]:
    """Holds the directory for one process; StartError while another has it."""
    os.makedirs(data, exist_ok=True)
    with open(os.path.join(data, LOCK_FILE), "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            who = lock.read().strip() or "another one"
            raise StartError(
                f"{data}: its nodes are run by process {who}; stop that one, or name another --data"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def wait_for_former(directories: Iterable[str]) -> None:
    """Waits for nodes whose `scriba up` was killed: they still stop, and have their ports so long.
    Who has not ended by then is for somebody else to tell of."""
    from scriba.runtime.files.disk import is_locked

    deadline = time.monotonic() + FORMER_S
    told = False
    for directory in directories:
        while is_locked(directory) and time.monotonic() < deadline:
            if not told:
                note(f"waiting for the node in {directory} to stop: whoever ran it is gone")
                told = True
            time.sleep(FORMER_LOOK_S)


def running(data: str) -> list[dict[str, Any]]:
    """The nodes that a `scriba up --nodes` runs over a directory; none where there is no such."""
    try:
        nodes: list[dict[str, Any]] = order(data, "list", 0)["nodes"]
    except CommandError:
        return []
    return nodes


@contextlib.contextmanager
def _address(data: str) -> Iterator[str]:
    path = os.path.join(os.path.abspath(data), SOCKET_FILE)
    if len(os.fsencode(path)) <= LONGEST_ADDRESS or sys.platform != "linux":
        yield path
        return
    directory = os.open(data, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET_FILE}"
    finally:
        os.close(directory)


@contextlib.asynccontextmanager
async def listening(
    data: str, carry_out: Callable[[str, int], Awaitable[Answer]]
) -> AsyncIterator[None]:
    """Takes orders while it is open: what to do, and with which node."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            order = json.loads(await reader.readline())
            answer = await carry_out(str(order["do"]), int(order["node"]))
        except CommandError as error:
            answer = {"error": {"cause": error.cause, "fix": error.fix}}
        except (ValueError, KeyError, TypeError, asyncio.LimitOverrunError) as error:
            answer = {"error": {"cause": f"no order that makes sense: {error}", "fix": ""}}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    with _address(data) as address:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # the directory is held: whoever left it is gone
        server = await asyncio.start_unix_server(serve, address, limit=LONGEST_LINE)
        os.chmod(address, 0o600)
        try:
            yield
        finally:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)


def order(data: str, do: str, node_id: int) -> Answer:
    """What became of an order; CommandError where it was refused or nobody takes it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            with _address(data) as address:
                connection.connect(address)
            connection.sendall(json.dumps({"do": do, "node": node_id}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(LONGEST_LINE)
        except TimeoutError:
            raise CommandError(
                f"no answer within {ANSWER_S:.0f} s", "look at its terminal"
            ) from None
        except OSError:
            raise CommandError(
                f"no `scriba up --nodes` runs over {data}", "start it, or name its --data"
            ) from None
    try:
        answer: Answer = json.loads(line)
    except ValueError:
        raise CommandError("the nodes' process ended before it answered") from None
    if "error" in answer:
        raise CommandError(answer["error"]["cause"], answer["error"]["fix"])
    return answer
