"""Services in coroutines, on the loop of the test."""

import asyncio
import json

from notifications import service
from totals import totals

from scriba.testing import Broker


def invoice(customer: str, total: int) -> str:
    return json.dumps({"customer": customer, "total": total})


async def test_a_mail_for_every_invoice(scriba_broker: Broker, scriba_prefix: str) -> None:
    invoices = scriba_broker.create_topic(f"{scriba_prefix}-invoices")
    mails = scriba_broker.create_topic(f"{scriba_prefix}-mails")
    scriba_broker.produce(invoices, invoice("ada", 42))
    async with service(scriba_broker.bootstrap_servers, invoices, mails) as running:
        await running.start()
        scriba_broker.produce(invoices, invoice("bob", 7))
        found = await asyncio.to_thread(scriba_broker.records, mails, at_least=2)
    assert [mail.value for mail in found] == [
        b"Dear ada, please pay 42.",
        b"Dear bob, please pay 7.",
    ]


async def test_what_customers_owe(scriba_fresh_broker: Broker) -> None:
    broker = scriba_fresh_broker
    broker.create_topic("invoices")
    for customer, total in (("ada", 42), ("bob", 7), ("ada", 8)):
        broker.produce("invoices", invoice(customer, total))
    assert await totals(broker.bootstrap_servers, "invoices", 3) == {"ada": 50, "bob": 7}
    assert broker.committed("totals") == {("invoices", 0): 3}
    assert broker.topics() == ["invoices"]
