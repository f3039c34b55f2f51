"""`scriba inventory`: run a service, ask one, and the jobs on Spark."""

import argparse
import ipaddress
import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scriba.cli.output import note, print_json, print_table
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import client_settings, run_session
from scriba.pipelines.commands.sessions import running_spark
from scriba.pipelines.inventory.http.asking import NoAnswer, call
from scriba.pipelines.inventory.topics import Names, WeakSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRY_SECONDS = 0.2
PAGE = 1000


# -- the service ---------------------------------------------------------------------------------


def serve(options: argparse.Namespace) -> int:
    try:
        from scriba.pipelines.inventory.http import web
    except ModuleNotFoundError as missing:
        raise CommandError(
            f"the service needs {missing.name}", "pip install 'scriba[console]'"
        ) from None
    from scriba.pipelines.inventory.service import Service, ServiceSettings
    from scriba.pipelines.inventory.store import StoreInUse

    listener = _listen(options.host, options.port, options.allow_insecure_bind)
    host, number = listener.getsockname()[:2]
    url = options.advertise or f"http://{f'[{host}]' if ':' in host else host}:{number}"
    settings = ServiceSettings(
        client=client_settings(options),
        folder=Path(options.data),
        url=url,
        names=Names(options.name),
        partitions=options.partitions,
        allow_single_node=options.allow_single_node,
        writes=not options.no_writer,
        session_timeout_ms=options.session_timeout,
        max_staleness=options.max_staleness / 1000,
    )

    def ready() -> None:
        said = json.dumps({"url": url}) if options.json else f"inventory on {url}"
        print(said, flush=True)

    async def work() -> int:
        try:
            service = await Service.open(settings)
        except (WeakSettings, StoreInUse) as refused:
            raise CommandError(str(refused)) from refused
        await web.serve(service, listener, ready)
        return 0

    with listener:
        return run_session(options, work())


def _listen(host: str, port: int, insecure: bool) -> socket.socket:
    """A socket that listens; beyond this machine only when that was said."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not ipaddress.ip_address(address[0]).is_loopback and not insecure:
        raise Misuse(
            f"{host} is open to others, and the service asks nobody who they are",
            "put a proxy before it, or say --allow-insecure-bind",
        )
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as taken:
        listener.close()
        raise CommandError(f"{host}:{port}: {taken.strerror}", "choose another --port") from taken
    return listener


# -- commands to it ------------------------------------------------------------------------------


def receive(options: argparse.Namespace) -> int:
    return _change(options, "receive", "quantity")


def order(options: argparse.Namespace) -> int:
    return _change(options, "order", "quantity")


def adjust(options: argparse.Namespace) -> int:
    return _change(options, "adjust", "counted" if options.counted else "quantity")


def _change(options: argparse.Namespace, kind: str, field: str) -> int:
    document = {
        "id": options.id or f"{kind}-{uuid.uuid4()}",
        "lines": [_line(text, field) for text in options.lines],
        "reason": options.reason,
    }
    status, answer = _ask(options, f"/{kind}", document)
    if options.json:
        print_json(answer)
        return 0 if status == 200 else 1
    if status == 409:
        raise CommandError(f"{document['id']} is refused: {answer['why']}")
    for event in answer["events"]:
        print(f"{event['item']}: {event['change']:+d}, now {event['stock']}")
    if answer["repeated"]:
        note(f"{document['id']} was carried out before; nothing was done again")
    return 0


def _line(text: str, field: str) -> dict[str, Any]:
    item, separator, number = text.rpartition("=")
    if not separator or not item:
        raise Misuse(f"{text!r} is not of the form ITEM=N")
    try:
        return {"item": item, field: int(number)}
    except ValueError:
        raise Misuse(f"{text!r}: {number!r} is no whole number") from None


def stock(options: argparse.Namespace) -> int:
    if options.item is not None:
        _, found = _ask(options, f"/stock/{quote(options.item, safe='')}")
        items = [found]
    else:
        items = _pages(options, "/stock", "items")
    if options.json:
        print_json(items[0] if options.item is not None else items)
        return 0
    rows = [(i["item"], i["stock"], i["version"], _place(i["offset"])) for i in items]
    print_table(["ITEM", "STOCK", "VERSION", "OFFSET"], rows)
    return 0


def history(options: argparse.Namespace) -> int:
    events = _pages(options, f"/history/{quote(options.item, safe='')}", "events")
    if options.json:
        print_json(events)
        return 0
    rows = [
        (
            e["version"],
            _when(e["at"]),
            e["type"],
            e["change"],
            e["stock"],
            e["command"],
            e["reason"],
        )
        for e in events
    ]
    headings = ["VERSION", "WHEN", "EVENT", "CHANGE", "STOCK", "COMMAND", "REASON"]
    print_table(headings, rows)
    return 0


def _pages(options: argparse.Namespace, path: str, field: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        _, page = _ask(options, f"{path}?limit={PAGE}{after}")
        found += page[field]
        if page["next"] is None:
            return found
        after = f"&after={quote(str(page['next']), safe='')}"


def _ask(
    options: argparse.Namespace, path: str, document: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Asks until there is an answer: a command may be repeated, since its id stays the same."""
    deadline = time.monotonic() + options.timeout
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            status, answer = call(options.url, path, document, seconds=left)
            if status in (200, 409):
                return status, answer
            problem = CommandError(str(answer.get("error", f"status {status}")))
            if status != 503:
                raise problem
        except NoAnswer as failure:
            problem = CommandError(
                str(failure), "start a service with `scriba inventory serve`, or name one by --url"
            )
        if time.monotonic() + RETRY_SECONDS > deadline:
            raise problem
        time.sleep(RETRY_SECONDS)


def _place(offset: dict[str, Any]) -> str:
    return f"{offset['topic']}-{offset['partition']}:{offset['offset']}"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))


# -- on Spark ------------------------------------------------------------------------------------


def view(options: argparse.Namespace) -> int:
    names, client = Names(options.name), client_settings(options)
    with _spark(options) as spark:
        from scriba.pipelines.inventory.jobs.view import keep, prepare_topic, start

        async def create() -> int:
            await prepare_topic(client, names, options.allow_single_node)
            return 0

        try:
            run_session(options, create())
        except WeakSettings as refused:
            raise CommandError(str(refused)) from refused
        trigger = None if options.once else options.trigger
        note(f"keeping {names.stock} up to date")
        keep(lambda: start(spark, client, names, options.checkpoint, trigger), note)
    return 0


def archive(options: argparse.Namespace) -> int:
    names, client = Names(options.name), client_settings(options)
    with _spark(options) as spark:
        from scriba.pipelines.inventory.jobs.view import archive as copy
        from scriba.pipelines.inventory.jobs.view import keep

        keep(lambda: copy(spark, client, names, options.to, options.checkpoint), note)
    return 0


def reconcile(options: argparse.Namespace) -> int:
    names, client = Names(options.name), client_settings(options)
    with _spark(options) as spark:
        from scriba.pipelines.inventory.jobs.reconcile import reconcile as recount

        report = recount(
            spark,
            client,
            names,
            lake=options.lake,
            with_view=not options.no_view,
            settled=options.settled,
        )
    if options.json:
        print_json(report.document())
    else:
        print("\n".join(report.lines()))
    return 0 if report.balanced else 1


@contextmanager
def _spark(options: argparse.Namespace) -> "Iterator[SparkSession]":
    """A session; what Spark has to say about a failure, in one line."""
    with running_spark(options, "inventory") as spark:
        from pyspark.errors import PySparkException

        from scriba.pipelines.attempts import reason

        try:
            yield spark
        except PySparkException as failure:
            raise CommandError(f"Spark: {reason(failure)}") from failure
