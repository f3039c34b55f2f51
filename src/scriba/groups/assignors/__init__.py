"""Server-side assignors: plans that share the partitions of subscribed topics among the members.

Like Apache Kafka's, they look at subscriptions and at the last target, and not at racks: racks
only take part in noticing that a topic has changed.
"""

from collections.abc import Mapping
from typing import Final

from scriba.groups.assignors.ranges import ranges
from scriba.groups.assignors.spec import AT_ONCE, Assignment, Assignor, MemberSpec
from scriba.groups.assignors.uniform import uniform

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}

__all__ = ["ASSIGNORS", "AT_ONCE", "Assignment", "Assignor", "MemberSpec"]
