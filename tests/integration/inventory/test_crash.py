"""Services that are killed at every step and at any moment: the books balance, always.

Whatever the services say, the topics are recounted by librdkafka. SCRIBA_CHAOS=1 takes all steps
and more deaths.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scriba.pipelines.inventory.http.asking import NoAnswer
from tests.integration.inventory.nodes import (
    PATIENCE,
    QUICK,
    Node,
    carried_out,
    check_books,
    nodes,
    order,
    recounted,
)
from tools.kafka.broker_fixtures import TARGETS
from tools.kafka.brokers import TESTED, Broker, running

CHAOS = bool(os.environ.get("SCRIBA_CHAOS"))
KILLS = 40 if CHAOS else 2

STEPS = {
    "enqueued": 3,
    "commit": 1,
    "committed": 1,
    **({"fenced": 1, "caught up": 1, "decided": 1, "read back": 1} if CHAOS else {}),
}
"""Where a writer dies, and at which time: with half of an order written, with all but the commit
done, and when only the answer is missing; the others when there is time."""


@pytest.fixture(scope="module", params=TARGETS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with running(TESTED[request.param](tmp_path_factory.mktemp("inventory"), QUICK)) as broker:
        yield broker


def test_a_writer_that_dies_at_any_step_leaves_all_of_an_order_or_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    """One inventory, one death after the other; each time another service finds what is left."""
    name = "steps"
    with nodes(broker.bootstrap, name, tmp_path, len(STEPS) + 1) as all_nodes:
        survivor, *mortals = all_nodes
        survivor.start()
        supply = order("supply", apple=100, pear=100, plum=100)
        assert carried_out([survivor], "receive", supply)[0] == 200
        survivor.kill()
        for mortal, (step, number) in zip(mortals, STEPS.items(), strict=True):
            mortal.start(step, number)
            wanted = order(f"dies-{step}", apple=1, pear=2, plum=3)
            with ThreadPoolExecutor(1) as beside:
                asking = beside.submit(carried_out, [mortal, survivor], "order", wanted)
                assert mortal.died() == -signal.SIGKILL
                survivor.start()
                status, answer = asking.result()
            assert status == 200
            assert [event["change"] for event in answer["events"]] == [-1, -2, -3]
            survivor.kill()
    expected = 100 - len(STEPS), 100 - 2 * len(STEPS), 100 - 3 * len(STEPS)
    stock = check_books(broker.bootstrap, name)
    assert (stock["apple"], stock["pear"], stock["plum"]) == expected


@pytest.mark.parametrize(("step", "number", "there"), [("decided", 2, 1), ("refuse", 1, 0)])
def test_a_writer_that_was_believed_dead_neither_sells_nor_refuses_on_old_books(
    broker: Broker, tmp_path: Path, step: str, number: int, there: int
) -> None:
    """It is paused with its decision made; meanwhile another takes over and changes the stock."""
    name, late = f"zombie-{step}", order("late", apple=1)
    supply = {"pear": 1, "apple": there} if there else {"pear": 1}
    with nodes(broker.bootstrap, name, tmp_path, 2) as (first, second):
        first.start(step, number, signal.SIGSTOP)
        assert carried_out([first], "receive", order("supply", **supply))[0] == 200
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(_asked, first, "order", late)
            first.paused()
            second.start()
            if there:
                assert carried_out([second], "order", order("sold", apple=1))[0] == 200
            else:
                assert carried_out([second], "receive", order("more", apple=1))[0] == 200
            first.signal(signal.SIGCONT)
            assert asked.result()[0] == 503
        status, _ = carried_out([first, second], "order", late)
        assert status == (409 if there else 200)
    assert check_books(broker.bootstrap, name) == {"apple": 0, "pear": 1}


def _asked(node: Node, kind: str, document: Any) -> tuple[int, Any]:
    try:
        return node.ask(f"/{kind}", document, 60)
    except NoAnswer as failure:
        return 503, failure


class Customers:
    """Send random commands to whichever service there is, and remember what they were told."""

    def __init__(self, services: list[Node], seed: int) -> None:
        self.services = services
        self.told: dict[str, tuple[int, Any]] = {}
        self.done = threading.Event()
        self._seed = seed

    def run(self, customer: int) -> None:
        rng = random.Random(f"{self._seed}-{customer}")
        number = 0
        while not self.done.is_set():
            number += 1
            kind = rng.choices(["receive", "order", "adjust"], [3, 6, 1])[0]
            items = rng.sample(["apple", "pear", "plum", "fig"], rng.randint(1, 3))
            field = "counted" if kind == "adjust" else "quantity"
            lines = [{"item": item, field: rng.randint(1, 20)} for item in items]
            document: dict[str, Any] = {"id": f"{customer}-{number}", "lines": lines}
            services = rng.sample(self.services, len(self.services))
            self.told[document["id"]] = carried_out(services, kind, document)
            if rng.random() < 0.2:
                status, again = carried_out(services, kind, document)
                first_status, first = self.told[document["id"]]
                if first_status == 200:
                    assert (status, again["events"]) == (200, first["events"])
                elif status == 200:
                    self.told[document["id"]] = status, again

    @property
    def count(self) -> int:
        return len(self.told)


def test_services_killed_at_random_among_busy_customers(broker: Broker, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    with nodes(broker.bootstrap, "random", tmp_path, 3) as services:
        for node in services:
            node.start()
        customers = Customers(services, seed)
        with ThreadPoolExecutor(3) as crowd:
            at_work = [crowd.submit(customers.run, n) for n in range(3)]
            try:
                for _ in range(KILLS):
                    _wait_for(customers, customers.count + rng.randint(3, 12))
                    victim = rng.choice(services)
                    victim.kill()
                    victim.start()
                _wait_for(customers, customers.count + 5)
            finally:
                customers.done.set()
            for work in at_work:
                work.result()
        shown = {
            item["item"]: item["stock"] for item in services[0].told("/stock?fresh=1")["items"]
        }
    assert check_books(broker.bootstrap, "random") == shown, seed
    _check_told(broker, customers, seed)


def _wait_for(customers: Customers, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while customers.count < count:
        assert time.monotonic() < deadline, "the customers are not served"
        time.sleep(0.01)


def _check_told(broker: Broker, customers: Customers, seed: int) -> None:
    """What was accepted is in the log as it was told, what was refused has left no trace."""
    written: dict[str, list[tuple[str, int, int]]] = {}
    for event in sorted(recounted(broker.bootstrap, "random-audit"), key=lambda e: e.line):
        told = (event.item, event.change, event.stock)
        written.setdefault(event.command, []).append(told)
    for name, (status, answer) in customers.told.items():
        if status == 200:
            lines = [(e["item"], e["change"], e["stock"]) for e in answer["events"]]
            assert written.pop(name) == lines, seed
        else:
            assert status == 409, answer
            assert name not in written, seed
    assert written == {}, seed
