"""`handed-over` in a log directory: the orders that replicas had before they were handed over.

A line for each partition: the id of its topic, its index, its replicas. So whoever restarts while
its volume is full still knows who was to lead. The file is written before anything is handed over,
and goes when all has its order again. Kafka passes it over, as it does every file there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.broker.partitions.replication.handover import Orders
    from scriba.runtime.ports import Clock, Disk

HANDED_OVER: Final = "handed-over"


def read(disk: Disk, directory: str) -> Orders:
    """What is written there. A line that cannot be read is passed over: its partition keeps the
    order that it has."""
    path = f"{directory}/{HANDED_OVER}"
    try:
        content = disk.read(path) if disk.exists(path) else b""
    except OSError:
        content = b""
    orders: Orders = {}
    for line in content.decode(errors="replace").splitlines():
        try:
            topic_id, index, replicas = line.split()
            order = tuple(dict.fromkeys(map(int, replicas.split(","))))
            orders[bytes.fromhex(topic_id), int(index)] = order
        except ValueError:
            continue
    return orders


async def write(disk: Disk, clock: Clock, directory: str, orders: Orders) -> None:
    """Replaces the file; OSError where the device does not take it."""
    path = f"{directory}/{HANDED_OVER}"
    if not orders:
        if disk.exists(path):
            disk.unlink(path)
        return
    pace = Pace(clock)
    lines: list[str] = []
    for (topic_id, index), replicas in tuple(orders.items()):
        lines.append(f"{topic_id.hex()} {index} {','.join(map(str, replicas))}\n")
        await pace()
    await disk.write_atomic(path, "".join(lines).encode())
