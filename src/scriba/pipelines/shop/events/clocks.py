"""Whose clock says when an event arrived.

It is the broker's: topics of events take LogAppendTime. So what a client's clock says can neither
pull the watermark ahead nor make others late, records of a partition arrive in their order, and the
same topics give the same figures whenever they are computed.

The generator makes up when events arrive, and a past before there was a broker. Its topics keep the
time that comes with a record, and refuse one that lies more than a minute ahead.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import FROM_THE_FUTURE, milliseconds
from scriba.pipelines.shop.topics import Names

if TYPE_CHECKING:
    from scriba.client import SyncAdmin

TYPE: Final = "message.timestamp.type"
AHEAD: Final = "message.timestamp.after.max.ms"
BROKERS: Final = "LogAppendTime"

MADE_UP: Final[Mapping[str, str]] = {
    TYPE: "CreateTime",
    AHEAD: str(milliseconds(FROM_THE_FUTURE)),
}


class NoMadeUpPast(Exception):
    """Topics take the broker's time, and hold events already."""


def make_up_arrivals(bootstrap: str, names: Names) -> None:
    """Has the topics of events keep the times that are sent, unless there are events in them."""
    from scriba.client import ConfigResource, OffsetSpec, SyncAdmin

    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        real = [topic for topic, of in _settings(admin, names).items() if of[TYPE] == BROKERS]
        if not real:
            return
        shapes = admin.describe_topics(real)
        places = [(topic, p.partition) for topic, shape in shapes.items() for p in shape.partitions]
        ends = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
        if used := sorted(where.topic for where, at in ends.items() if at and at.offset > 0):
            raise NoMadeUpPast(f"{used[0]} holds events, at the times at which they came")
        admin.alter_configs({ConfigResource.topic(topic): MADE_UP for topic in real})


def warnings(bootstrap: str, names: Names) -> list[str]:
    """What is to be said of topics in which a client's clock may silence others."""
    from scriba.client import SyncAdmin

    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        return [
            f"{topic} believes clients whose clock is up to {int(of[AHEAD]) // 60_000} minutes "
            "ahead, which makes events of others late; run `scriba config set --topic "
            f"{topic} {TYPE}={BROKERS}`"
            for topic, of in _settings(admin, names).items()
            if of[TYPE] != BROKERS and int(of[AHEAD]) > milliseconds(FROM_THE_FUTURE)
        ]


def _settings(admin: "SyncAdmin", names: Names) -> dict[str, dict[str, str]]:
    from scriba.client import ConfigResource

    wanted = [ConfigResource.topic(topic) for topic in names.all(topics.INPUTS)]
    found = admin.describe_configs(wanted, names=(TYPE, AHEAD))
    return {
        resource.name: {name: str(entry.value) for name, entry in entries.items()}
        for resource, entries in found.items()
    }
