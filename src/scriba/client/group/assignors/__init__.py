"""How a group's leader shares out partitions: plans over facts, under Kafka's names."""

from typing import Final

from scriba.client.group.assignors.model import Assignor
from scriba.client.group.assignors.shares import RANGE, ROUND_ROBIN
from scriba.client.group.assignors.sticky import COOPERATIVE_STICKY, STICKY

__all__ = ["ASSIGNORS", "JAVA_NAMES", "Assignor"]

ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)
}

_JAVA: Final = "org.apache.kafka.clients.consumer."

JAVA_NAMES: Final[dict[str, str]] = {
    f"{_JAVA}RangeAssignor": "range",
    f"{_JAVA}RoundRobinAssignor": "roundrobin",
    f"{_JAVA}StickyAssignor": "sticky",
    f"{_JAVA}CooperativeStickyAssignor": "cooperative-sticky",
}
"""Java's class names, as configurations carry them."""
