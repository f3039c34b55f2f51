"""What both machines of membership are given, and what they ask for.

A machine is told what happened and says what comes next. `next` gives a request for the
coordinator, one at a time: `answered`, or `unanswered` when nobody knows whether it arrived, comes
before the next is asked for, at `wake_at` at the latest. `change` gives what has to happen to the
application's partitions; between `begin` and `changed` the application is doing it. It does so only
while it polls, so that no partition is taken away from under a record that is being worked on.
`take_error` gives what only the application can decide; once it has been told, what failed is
tried again. `lost` says that others may have been given what is owned. `polled` shows that the
application is alive. `leave` ends the membership with a last request, if there is any.
"""

from dataclasses import dataclass

from scriba.client.group.assignors import Assignor
from scriba.client.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a member is and how patient it is; nothing here changes."""

    group_id: str
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[Assignor, ...] = ()
    remote_assignor: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What the application has to give up, and what it then has (None: nothing new).

    `lost` says that the group may have given the partitions to others already.
    """

    release: tuple[TopicPartition, ...] = ()
    lost: bool = False
    assign: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """What is subscribed to: names, and for the consumer protocol the broker's expression."""

    topics: frozenset[str] = frozenset()
    regex: str | None = None
