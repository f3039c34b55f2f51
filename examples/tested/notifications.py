"""Tells customers about their invoices (FastStream)."""

from faststream.kafka import KafkaBroker
from pydantic import BaseModel


class Invoice(BaseModel):
    customer: str
    total: int


def service(bootstrap_servers: str, invoices: str, mails: str) -> KafkaBroker:
    broker = KafkaBroker(bootstrap_servers, logger=None)

    @broker.subscriber(invoices, group_id="notifications", auto_offset_reset="earliest")
    @broker.publisher(mails)
    async def tell(invoice: Invoice) -> str:
        return f"Dear {invoice.customer}, please pay {invoice.total}."

    return broker
