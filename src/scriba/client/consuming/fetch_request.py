"""The Fetch request for what a session wants to change."""

from scriba.client.consuming.fetch_session import Plan
from scriba.client.model import Isolation
from scriba.client.settings import ConsumerSettings
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic


def fetch_request(
    plan: Plan, settings: ConsumerSettings, isolation: Isolation, rack: str
) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for (topic, partition), want in plan.send.items():
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchTopic(topic=topic, topic_id=want.topic_id)
        entry.partitions.append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    forgotten: dict[str, ForgottenTopic] = {}
    for (topic, partition), want in plan.forget.items():
        gone = forgotten.get(topic)
        if gone is None:
            gone = forgotten[topic] = ForgottenTopic(topic=topic, topic_id=want.topic_id)
        gone.partitions.append(partition)
    return FetchRequest(
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        isolation_level=isolation,
        session_id=plan.session_id,
        session_epoch=plan.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
        rack_id=rack,
    )
