"""A broker that is to be emptied is cordoned first (KIP-1066): topics that are made meanwhile would
else put replicas on it again, and the next balance."""

from collections.abc import Iterable, Mapping
from typing import Final

from scriba.cli.output import note, warn
from scriba.client import Admin, ClientError, ConfigOp, ConfigResource
from scriba.config import Source

CORDONS: Final = "cordoned.log.dirs"
ALL: Final = "*"

Cordons = dict[int, str | None]
"""By broker that was cordoned, what it had set before."""


def lifting(broker: int) -> str:
    """The command that lifts a cordon."""
    return f"scriba config set --broker {broker} --delete {CORDONS}"


async def cordon(admin: Admin, brokers: Iterable[int]) -> Cordons:
    """Those that could be: a broker that has no such setting is emptied without."""
    done: Cordons = {}
    for broker in brokers:
        resource = ConfigResource.broker(broker)
        try:
            entries = (await admin.describe_configs([resource], names=[CORDONS]))[resource]
            await admin.incremental_alter_configs({resource: [(CORDONS, ConfigOp.SET, ALL)]})
        except ClientError as error:
            warn(f"broker {broker} is not cordoned ({error}): it may be given new topics' replicas")
            continue
        entry = entries.get(CORDONS)
        own = entry is not None and entry.source == Source.DYNAMIC_BROKER_CONFIG
        done[broker] = entry.value if own and entry is not None else None
        note(f"broker {broker} is cordoned and gets no new replicas; {lifting(broker)} lifts that")
    return done


async def lift(admin: Admin, cordons: Mapping[int, str | None]) -> None:
    """Has brokers as they were before, where nothing came of it."""
    for broker, before in cordons.items():
        operation = ConfigOp.DELETE if before is None else ConfigOp.SET
        change = (CORDONS, operation, before)
        try:
            await admin.incremental_alter_configs({ConfigResource.broker(broker): [change]})
        except ClientError as error:
            warn(f"broker {broker} is still cordoned ({error}): {lifting(broker)}")
        else:
            note(f"nothing was moved: broker {broker} is no longer cordoned")


async def forget(admin: Admin, broker: int, via: int) -> None:
    """Lifts the cordon of a broker that is gone for good, by way of one that lives."""
    change = (CORDONS, ConfigOp.DELETE, None)
    try:
        await admin.incremental_alter_configs({ConfigResource.broker(broker): [change]}, via=via)
    except ClientError as error:
        warn(f"a broker that is given the number {broker} may be cordoned ({error})")
