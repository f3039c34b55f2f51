"""What happens to an order, in this order. Its id is the key, so all of it is in one partition."""

from scriba.client import Admin, BrokerError, NewTopic, Producer
from scriba.errors import ErrorCode

TOPIC = "order-events"
PARTITIONS = 3
LIFE = ("placed", "shipped", "delivered")


async def create_topic(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        try:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
        except BrokerError as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


async def tell(bootstrap: str, orders: range) -> None:
    """Places these orders, then ships, then delivers all of them."""
    async with Producer(
        bootstrap_servers=bootstrap, key_serializer="str", value_serializer="str"
    ) as producer:
        for event in LIFE:
            for number in orders:
                await producer.enqueue(TOPIC, event, f"order-{number}")
        await producer.flush()
