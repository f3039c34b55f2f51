"""Partitions as a person names them: `orders`, or `orders:0,1`."""

from collections.abc import Iterable

from scriba.cli.problems import CommandError, Misuse
from scriba.client import Admin, OffsetSpec, TopicPartition


async def partitions_named(admin: Admin, texts: Iterable[str]) -> list[TopicPartition]:
    named: dict[str, set[int]] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        try:
            named.setdefault(topic, set()).update(int(n) for n in numbers.split(",") if colon)
        except ValueError:
            raise Misuse(f"{text!r} is not of the form TOPIC or TOPIC:0,1") from None
    found: list[TopicPartition] = []
    for topic, described in (await admin.describe_topics(named)).items():
        there = [p.partition for p in described.partitions]
        wrong = next((n for n in sorted(named[topic]) if n not in there), None)
        if wrong is not None:
            raise CommandError(
                f"{topic} has no partition {wrong}", f"choose one below {len(there)}"
            )
        found += [TopicPartition(topic, n) for n in sorted(named[topic]) or there]
    return found


async def offsets_at(
    admin: Admin, partitions: Iterable[TopicPartition], spec: int = OffsetSpec.LATEST
) -> dict[TopicPartition, int]:
    """Where logs end, or another place in them; left out where there is no such place."""
    found = await admin.list_offsets(dict.fromkeys(partitions, spec))
    return {where: place.offset for where, place in found.items() if place is not None}
