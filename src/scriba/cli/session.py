"""A command's time with a cluster: its client settings, its event loop, its end."""

import argparse
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from scriba.cli.problems import CommandError, Misuse
from scriba.cli.records.waiting import watched
from scriba.cli.stops import until_stopped
from scriba.client import Admin, NetworkError, TimedOut
from scriba.client.settings import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
)
from scriba.config import ConfigError, did_you_mean
from scriba.runtime.loop.loop import run as run_loop

CLIENT_ID = "scriba-cli"

Command = Callable[[Admin, argparse.Namespace], Awaitable[int]]


def with_admin(command: Command) -> Callable[[argparse.Namespace], int]:
    """Makes a command of a function that needs an `Admin`."""

    @functools.wraps(command)
    def run(options: argparse.Namespace) -> int:
        async def work() -> int:
            async with open_admin(options) as admin, watched(admin):
                return await command(admin, options)

        return run_session(options, until_stopped(work()))

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
    given = client_settings(options, "" if beside_another else "admin")
    if beside_another:
        given = {name: value for name, value in given.items() if name in AdminSettings.table}
    limit_ms = timeout_ms(options)
    # A process that stands still takes a connection and says nothing: others need time, too.
    setup_ms = min(AdminSettings().socket_connection_setup_timeout_ms, max(limit_ms // 4, 1))
    limits = {"default.api.timeout.ms": limit_ms, "socket.connection.setup.timeout.ms": setup_ms}
    return Admin(limits | given)


_KINDS: Final[dict[str, type[ClientSettings]]] = {
    "admin": AdminSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
}


def client_settings(options: argparse.Namespace, kind: str = "") -> dict[str, Any]:
    """What every client is given; -X has the last word.

    Of a profile's settings a client takes those it knows, since they are for all clients; what
    is given by -X is for this command, so it has to be one of its settings.
    """
    given = dict(options.properties)
    known = _KINDS[kind].table if kind else ClientSettings.table
    if kind:
        for name in given:
            if name not in known:
                _refuse(name, kind)
    profile = {k: v for k, v in options.profile_settings.items() if k in known}
    base = {"bootstrap.servers": options.bootstrap, "client.id": CLIENT_ID}
    return base | profile | given


_DOES: Final = {"admin": "administers", "producer": "produces", "consumer": "consumes"}


def _refuse(name: str, kind: str) -> None:
    """Raises for a setting that a client of this kind has not, if another kind has it."""
    owners = [other for other, settings in _KINDS.items() if name in settings.table]
    if owners:
        told = " and ".join(f"{owner}s" for owner in owners)
        raise Misuse(
            f"-X {name}: a setting of {told}, and this command only {_DOES[kind]}", "drop it"
        )


def check_everywhere(settings: dict[str, str]) -> None:
    """ConfigError for a setting that no client knows, or of which one would refuse the value."""
    tables = [kind.table for kind in _KINDS.values()]
    for name, text in settings.items():
        declared = [table[name] for table in tables if name in table]
        if not declared:
            every = [known for table in tables for known in table]
            raise ConfigError(name, f"no such setting of a client{did_you_mean(name, every)}")
        for setting in declared:
            setting.parse(text)


def timeout_ms(options: argparse.Namespace) -> int:
    seconds: float = options.timeout
    return round(seconds * 1000)
