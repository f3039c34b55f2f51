"""A command's time with a cluster: its client settings, its event loop, its end."""

import argparse
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from scriba.cli.problems import CommandError
from scriba.client import Admin, NetworkError, TimedOut
from scriba.client.settings import AdminSettings
from scriba.runtime.loop import run as run_loop

CLIENT_ID = "scriba-cli"

Command = Callable[[Admin, argparse.Namespace], Awaitable[int]]


def with_admin(command: Command) -> Callable[[argparse.Namespace], int]:
    """Makes a command of a function that needs an `Admin`."""

    @functools.wraps(command)
    def run(options: argparse.Namespace) -> int:
        async def work() -> int:
            async with open_admin(options) as admin:
                return await command(admin, options)

        return run_session(options, work())

    return run


def run_session(options: argparse.Namespace, work: Coroutine[Any, Any, int]) -> int:
    """Runs the work to its end; an unreachable cluster is told with what to do about it."""
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return run_loop(work)
    except TimedOut as late:
        if isinstance(late.cause, NetworkError):
            raise CommandError(
                f"no answer from {options.bootstrap} ({late.cause.args[0]})",
                "start a node with `scriba up`, or name a broker with --bootstrap",
            ) from late
        raise


def open_admin(options: argparse.Namespace, *, beside_another: bool = False) -> Admin:
    """With another client, properties that only that one knows are left out."""
    given = client_settings(options)
    if beside_another:
        given = {name: value for name, value in given.items() if name in AdminSettings.table}
    return Admin({"default.api.timeout.ms": timeout_ms(options)} | given)


def client_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What every client is given; -X has the last word."""
    return {
        "bootstrap.servers": options.bootstrap,
        "client.id": CLIENT_ID,
        **dict(options.properties),
    }


def timeout_ms(options: argparse.Namespace) -> int:
    seconds: float = options.timeout
    return round(seconds * 1000)
