"""A program of its own thread, and what becomes of it when the broker is in trouble."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException
from invoicing import Invoicing

from scriba.testing import Broker, Record

ORDER = json.dumps({"customer": "ada", "quantity": 2, "price": 21})
INVOICE = {"customer": "ada", "total": 42}


class Running:
    """The program in a thread, and what it failed with."""

    def __init__(self, program: Invoicing) -> None:
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(program,))
        self.thread.start()

    def run(self, program: Invoicing) -> None:
        try:
            program.run(self.stopped.is_set)
        except BaseException as failure:
            self.failure = failure


@contextmanager
def invoicing(broker: Broker, orders: str) -> Iterator[Running]:
    running = Running(Invoicing(broker.bootstrap_servers, orders, f"{orders}-invoices"))
    try:
        yield running
    finally:
        running.stopped.set()
        running.thread.join()


def content(record: Record) -> object:
    assert record.value is not None
    return json.loads(record.value)


def test_an_order_becomes_an_invoice(scriba_broker: Broker, scriba_topic: str) -> None:
    scriba_broker.produce(scriba_topic, ORDER, key="1")
    with invoicing(scriba_broker, scriba_topic):
        (invoice,) = scriba_broker.records(f"{scriba_topic}-invoices", at_least=1)
    assert (invoice.key, content(invoice)) == (b"1", INVOICE)
    assert scriba_broker.committed(f"invoicing-{scriba_topic}") == {(scriba_topic, 0): 1}


def test_what_is_no_order_stops_nobody(scriba_broker: Broker, scriba_topic: str) -> None:
    scriba_broker.produce(scriba_topic, "not an order")
    scriba_broker.produce(scriba_topic, ORDER)
    with invoicing(scriba_broker, scriba_topic):
        scriba_broker.records(f"{scriba_topic}-invoices", at_least=1)
    (dead,) = scriba_broker.records(f"{scriba_topic}-dead")
    assert dead.value == b"not an order"


def test_an_answer_that_is_lost_makes_no_second_invoice(
    scriba_broker: Broker, scriba_topic: str
) -> None:
    scriba_broker.create_topic(f"{scriba_topic}-invoices")
    scriba_broker.drop_next("Produce")
    scriba_broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    scriba_broker.produce(scriba_topic, ORDER)
    with invoicing(scriba_broker, scriba_topic):
        scriba_broker.records(f"{scriba_topic}-invoices", at_least=1)
        scriba_broker.produce(scriba_topic, ORDER)
        invoices = scriba_broker.records(f"{scriba_topic}-invoices", at_least=2)
    assert [content(each) for each in invoices] == [INVOICE, INVOICE]


def test_an_order_is_not_committed_before_its_invoice(
    scriba_broker: Broker, scriba_topic: str
) -> None:
    scriba_broker.create_topic(f"{scriba_topic}-invoices")
    scriba_broker.fail_next("Produce", "MESSAGE_TOO_LARGE")
    scriba_broker.produce(scriba_topic, ORDER)
    with invoicing(scriba_broker, scriba_topic) as failing:
        failing.thread.join(30)
    assert isinstance(failing.failure, KafkaException)
    assert scriba_broker.committed(f"invoicing-{scriba_topic}") == {}
    # It died without a word to its group; nobody has to wait for its session to end.
    scriba_broker.clock.advance(minutes=1)
    with invoicing(scriba_broker, scriba_topic):
        (invoice,) = scriba_broker.records(f"{scriba_topic}-invoices", at_least=1)
    assert content(invoice) == INVOICE


@pytest.mark.parametrize("kill", [False, True])
def test_the_broker_restarts(scriba_broker: Broker, scriba_topic: str, kill: bool) -> None:
    with invoicing(scriba_broker, scriba_topic):
        scriba_broker.produce(scriba_topic, ORDER)
        scriba_broker.records(f"{scriba_topic}-invoices", at_least=1)
        scriba_broker.restart(kill=kill)
        scriba_broker.produce(scriba_topic, ORDER)
        scriba_broker.records(f"{scriba_topic}-invoices", at_least=2)
