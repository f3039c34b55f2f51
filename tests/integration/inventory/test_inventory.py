"""Services of an inventory, used as people use them: from the command line, and over HTTP."""

import http.client
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scriba.cli.main import main
from scriba.client import NewTopic, SyncAdmin, SyncProducer
from scriba.pipelines.inventory.http.asking import call
from tests.integration.inventory.nodes import (
    PATIENCE,
    QUICK,
    UNDISTURBED_MS,
    carried_out,
    check_books,
    nodes,
    order,
)
from tools.kafka.broker_fixtures import TARGETS
from tools.kafka.brokers import TESTED, Broker, running


@pytest.fixture(scope="module", params=TARGETS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with running(TESTED[request.param](tmp_path_factory.mktemp("inventory"), QUICK)) as broker:
        yield broker


class Shell:
    """`scriba inventory`, with what it says."""

    def __init__(self, broker: Broker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self.folder = folder
        self.url = ""
        self._capsys = capsys
        self._process: subprocess.Popen[str] | None = None

    def serve(self, name: str) -> None:
        command = [sys.executable, "-m", "scriba", "inventory", "serve", "--port", "0"]
        command += ["--data", str(self.folder), "--name", name, "--allow-single-node", "--json"]
        command += ["--bootstrap", self.broker.bootstrap, "--session-timeout", "3s"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"]

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["inventory", *words, "--url", self.url, "--timeout", str(PATIENCE)])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json")[1])

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)


@pytest.fixture
def shell(broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    made = Shell(broker, tmp_path / "data", capsys)
    yield made
    made.close()


def metrics(url: str) -> dict[str, int]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: int(value) for name, _, value in lines}


def test_a_day_in_the_warehouse(shell: Shell, broker: Broker) -> None:
    shell.serve("day")
    assert shell("receive", "apple=10", "pear=4", "--id", "r1")[1] == (
        "apple: +10, now 10\npear: +4, now 4\n"
    )
    assert shell("order", "apple=3", "pear=4", "--id", "o1")[1] == (
        "apple: -3, now 7\npear: -4, now 0\n"
    )
    assert shell("order", "apple=1", "pear=1", "--id", "o2") == (
        1,
        "",
        "scriba: o2 is refused: pear: 1 wanted, 0 there\n",
    )
    code, out, err = shell("order", "apple=3", "pear=4", "--id", "o1")
    assert (code, out.splitlines()[0]) == (0, "apple: -3, now 7")
    assert "carried out before" in err
    assert shell("order", "apple=4", "--id", "o1")[2] == (
        "scriba: o1 is refused: o1 was used for another command; choose a new id\n"
    )
    shell("adjust", "apple=5", "--counted", "--reason", "two were rotten", "--id", "a1")
    assert shell("adjust", "apple=-6")[0] == 1
    stock = shell.json("stock", "apple")
    assert (stock["stock"], stock["version"], stock["event"]["command"]) == (5, 3, "a1")
    assert stock["offset"]["offset"] < stock["as_of"]["end_offset"]
    changes = [(e["type"], e["change"], e["stock"]) for e in shell.json("history", "apple")]
    assert changes == [
        ("StockReceived", 10, 10),
        ("StockDecreased", -3, 7),
        ("StockAdjusted", -2, 5),
    ]
    head, *_, last = shell("history", "apple")[1].splitlines()
    assert (head.split()[-1], last.split()[0]) == ("REASON", "3")
    assert last.endswith("a1       two were rotten")
    assert shell("stock", "plum")[2] == "scriba: there is no item plum\n"
    assert shell("order", "apple")[2] == "scriba: 'apple' is not of the form ITEM=N\n"
    assert shell.end(signal.SIGTERM) == 0
    assert check_books(broker.bootstrap, "day") == {"apple": 5, "pear": 0}


def test_a_service_goes_on_where_its_folder_ends_and_without_it_at_the_beginning(
    shell: Shell,
) -> None:
    shell.serve("restarts")
    shell("receive", "apple=5", "--id", "r1")
    before = shell.json("stock")
    assert metrics(shell.url)["inventory_records_read_total"] == 2
    for remembers in (True, False):
        shell.end(signal.SIGKILL)
        if not remembers:
            shutil.rmtree(shell.folder)
        shell.serve("restarts")
        assert shell.json("stock") == before
        assert "carried out before" in shell("receive", "apple=5", "--id", "r1")[2]
        assert metrics(shell.url)["inventory_records_read_total"] == (0 if remembers else 2)


def test_others_forward_to_the_writer_and_one_of_them_takes_over(
    broker: Broker, tmp_path: Path
) -> None:
    undisturbed = nodes(broker.bootstrap, "forwards", tmp_path, 2, UNDISTURBED_MS)
    with undisturbed as (first, second):
        first.start()
        assert carried_out([first], "receive", order("r", apple=9))[0] == 200
        second.start()
        assert carried_out([second], "order", order("o", apple=2))[0] == 200
        health = second.told("/health")
        assert (health["writing"], health["writer"]) == (False, first.url)
        assert metrics(first.url)["inventory_takeovers_total"] == 1
        first.kill()
        assert carried_out([second], "order", order("p", apple=2))[0] == 200
        assert second.told("/health")["writing"]
        assert second.told("/stock/apple?fresh=1")["stock"] == 5
        assert [e["change"] for e in second.told("/commands/o")["events"]] == [-2]


def test_a_broker_that_is_killed_is_waited_for(broker: Broker, tmp_path: Path) -> None:
    with nodes(broker.bootstrap, "waits", tmp_path, 1) as (node,):
        node.start()
        assert carried_out([node], "receive", order("r", apple=9))[0] == 200
        broker.kill()
        assert node.ask("/stock/apple?fresh=1")[0] == 503
        broker.start()
        assert carried_out([node], "order", order("o", apple=2))[0] == 200
        assert node.told("/stock/apple")["stock"] == 7
    assert check_books(broker.bootstrap, "waits") == {"apple": 7}


def test_a_foreign_record_in_the_books_silences_the_service(broker: Broker, tmp_path: Path) -> None:
    with nodes(broker.bootstrap, "damaged", tmp_path, 1) as (node,):
        node.start()
        assert carried_out([node], "receive", order("r", apple=9))[0] == 200
        assert node.told("/stock/apple")["stock"] == 9
        with SyncProducer(bootstrap_servers=broker.bootstrap) as producer:
            where = producer.send("damaged-audit", b"apples: many", key=b"apple")
        status = 200
        while status == 200:
            status, answer = node.ask("/stock/apple?fresh=1")
        assert status == 503
        place = f"damaged-audit-{where.partition} at offset {where.offset}"
        assert answer["error"].startswith(f"the books cannot be trusted: {place}: not an event")
        assert node.ask("/order", order("o", apple=1))[0] == 503


def test_what_is_asked_wrongly_is_answered_with_what_is_wrong(
    broker: Broker, tmp_path: Path
) -> None:
    with nodes(broker.bootstrap, "wrong", tmp_path, 1) as (node,):
        node.start()
        assert node.told("/stock")["items"] == []
        for path, document, complaint in (
            ("/order", {"id": "x"}, "lines: must be a list"),
            ("/order", order("x", apple=0), "line 1: quantity: must be a whole number"),
            ("/stock?limit=0", None, "limit: must be a whole number from 1 to 1000"),
            ("/history/apple?after=-1", None, "after: must be a whole number"),
        ):
            status, answer = node.ask(path, document)
            assert (status, answer["error"][: len(complaint)]) == (400, complaint)
        assert node.ask("/stocks")[0] == 404
        assert node.ask("/order")[0] == 405


def test_everything_in_the_document_is_served(broker: Broker, tmp_path: Path) -> None:
    with nodes(broker.bootstrap, "served", tmp_path, 1) as (node,):
        node.start()
        line = {"item": "apple", "quantity": 1}
        for kind in ("receive", "order", "adjust"):
            assert carried_out([node], kind, {"id": kind, "lines": [line]})[0] == 200
        _, document = call(node.url, "/openapi.json", seconds=PATIENCE)
        posts = {path for path, methods in document["paths"].items() if "post" in methods}
        assert posts == {"/receive", "/order", "/adjust"}
        for path in document["paths"].keys() - posts - {"/metrics"}:
            filled = path.replace("{item}", "apple").replace("{id}", "order")
            assert node.ask(filled)[0] == 200, filled
        assert metrics(node.url)["inventory_items"] == 1


def test_topics_that_could_lose_the_books_are_refused(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("weak-audit", 3, 1, {"retention.ms": "3600000"})])
    serve = ["inventory", "serve", "--bootstrap", broker.bootstrap, "--name", "weak"]
    serve += ["--port", "0", "--data", str(tmp_path)]
    assert main(serve) == 1
    assert "accept that with --allow-single-node" in capsys.readouterr().err
    assert main([*serve, "--allow-single-node"]) == 1
    told = capsys.readouterr().err
    assert told == (
        "scriba: weak-audit has retention.ms=3600000; run `scriba config set --topic weak-audit "
        "retention.ms=-1`\n"
    )
