"""`scriba cluster unregister`: a broker that is gone for good leaves the list of brokers.

The request itself (UnregisterBroker) takes out whomever it names, as in Kafka. Here one that lives
is refused, since it would only register again, and one that still has replicas, since those could
never be whole again. The cordon of its drain goes with it: whoever gets its number is another one.
"""

import argparse

from scriba.cli.cluster.cordons import forget
from scriba.cli.output import counted, print_json
from scriba.cli.problems import CommandError
from scriba.cli.session import with_admin
from scriba.cli.topics.gone import described
from scriba.client import Admin


@with_admin
async def run(admin: Admin, options: argparse.Namespace) -> int:
    broker: int = options.broker
    cluster = await admin.describe_cluster(include_fenced=True)
    known = sorted(node.id for node in cluster.nodes)
    if broker not in known:
        raise CommandError(
            f"there is no broker {broker}", f"there are {', '.join(map(str, known))}"
        )
    if broker not in cluster.fenced:
        raise CommandError(
            f"broker {broker} is up", f"drain it (scriba cluster drain {broker}) and stop it first"
        )
    held = [
        f"{topic.name}-{each.partition}"
        for topic in (await described(admin)).values()
        for each in topic.partitions
        if broker in each.replicas
    ]
    if held:
        raise CommandError(
            f"broker {broker} still has {counted(len(held), 'replica')}, {held[0]} first of all",
            f"move them: scriba cluster drain {broker}",
        )
    for live in [each for each in known if each not in cluster.fenced][:1]:
        await forget(admin, broker, live)
    await admin.unregister_broker(broker)
    if options.json:
        print_json({"broker": broker, "unregistered": True})
    else:
        print(f"broker {broker} is no longer part of the cluster")
    return 0
