"""Examples for `--help`, by command. A test reads each as the command line is read."""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "scriba": (
        "scriba up --demo",
        "echo hello | scriba produce demo",
        "scriba consume demo --exit",
        "scriba help topic create",
    ),
    "scriba up": (
        "scriba up",
        "scriba up --data /var/lib/scriba --port 9093 --set log.retention.hours=24",
        "scriba up --config server.properties",
        "scriba up --nodes 3",
        "scriba up --nodes 3 --controllers 3 --data /var/lib/scriba",
        "scriba up --join 127.0.0.1:9092 --controller --data second",
        "scriba up --join 127.0.0.1:9092 --controller --data third --replicas 3",
    ),
    "scriba demo": ("scriba demo",),
    # -- topics
    "scriba topic": ("scriba topic create orders --partitions 6", "scriba topic list"),
    "scriba topic create": (
        "scriba topic create orders --partitions 6 --config retention.ms=3600000",
        "scriba topic create orders --plan 120",
        "scriba topic create orders --if-not-exists",
    ),
    "scriba topic list": ("scriba topic list", "scriba topic list --internal --json"),
    "scriba topic describe": (
        "scriba topic describe orders",
        "scriba topic describe --under-replicated",
        "scriba topic describe --offline --json",
    ),
    "scriba topic alter": ("scriba topic alter orders --partitions 12",),
    "scriba topic delete": ("scriba topic delete orders --if-exists",),
    "scriba topic trim": (
        "scriba topic trim orders --before '7 days ago'",
        "scriba topic trim orders:0,1 --before 42000 --apply",
        "scriba topic trim orders --before -1000",
    ),
    "scriba topic why": ("scriba topic why orders-0", "scriba topic why orders --json"),
    # -- settings
    "scriba config": ("scriba config get --topic orders",),
    "scriba config get": (
        "scriba config get --topic orders",
        "scriba config get --broker 1 log.retention.ms",
        "scriba config get --cluster --all",
    ),
    "scriba config set": (
        "scriba config set --topic orders retention.ms=86400000 --delete cleanup.policy",
        "scriba config set --cluster message.max.bytes=2000000 --dry-run",
    ),
    # -- records
    "scriba produce": (
        "echo hello | scriba produce demo",
        "scriba produce orders ./orders.jsonl --json --compression zstd",
        "echo hello | scriba produce orders audit",
        "scriba consume orders invoices --exit --json | scriba produce --json -b other:9092",
        "printf 'k1:v1\\nk2:v2\\n' | scriba produce users --key-separator :",
        "echo k1 | scriba produce users --tombstone",
    ),
    "scriba consume": (
        "scriba consume orders --exit",
        "scriba consume orders --from '2h ago' --format '%p %o %k=%s\\n'",
        "scriba consume users --key-separator : --null-marker NULL",
        "scriba consume orders invoices --group billing",
        "scriba consume --pattern 'shop\\..*' --json",
    ),
    # -- groups and transactions
    "scriba group": ("scriba group list", "scriba group describe billing"),
    "scriba group list": ("scriba group list --state empty",),
    "scriba group describe": ("scriba group describe billing",),
    "scriba group reset": (
        "scriba group reset billing --to '2h ago'",
        "scriba group reset billing --topic orders:0 --shift -100 --apply",
    ),
    "scriba group delete": (
        "scriba group delete billing",
        "scriba group delete billing --topic orders",
    ),
    "scriba txn": ("scriba txn list --longer-than 10m",),
    "scriba txn list": ("scriba txn list --state Ongoing", "scriba txn list --longer-than 10m"),
    "scriba txn describe": ("scriba txn describe billing-1",),
    "scriba txn abort": (
        "scriba txn abort billing-1",
        "scriba txn abort --topic orders --partition 0 --start-offset 4711",
    ),
    # -- cluster and files
    "scriba cluster": ("scriba cluster describe", "scriba cluster quorum"),
    "scriba cluster describe": ("scriba cluster describe --json",),
    "scriba cluster quorum": ("scriba cluster quorum", "scriba cluster quorum --broker 2"),
    "scriba cluster replicas": (
        "scriba cluster replicas 3",
        "scriba cluster replicas 1 --off 2 --off 3",
    ),
    "scriba cluster voters": (
        "scriba cluster voters add 4 --address 127.0.0.1:9104",
        "scriba cluster voters remove 2",
    ),
    "scriba cluster voters add": ("scriba cluster voters add 4 --address 127.0.0.1:9104",),
    "scriba cluster voters remove": ("scriba cluster voters remove 2",),
    "scriba cluster elect": (
        "scriba cluster elect --wait --timeout 60",
        "scriba cluster elect orders:0,1 --unclean",
    ),
    "scriba cluster reassign": (
        "scriba cluster reassign orders:0,1 --to 2,3,4 --dry-run",
        "scriba cluster reassign --file plan.json --throttle 50000000",
        "scriba cluster reassign --list",
        "scriba cluster reassign --cancel",
    ),
    "scriba cluster drain": ("scriba cluster drain 3 --throttle 50000000",),
    "scriba cluster add": ("scriba cluster add 4", "scriba cluster add 4 5 --dry-run"),
    "scriba cluster unregister": ("scriba cluster unregister 3",),
    "scriba cluster balance": ("scriba cluster balance --dry-run",),
    "scriba cluster promote": (
        "scriba cluster promote zone-c --dry-run",
        "scriba cluster promote zone-c --topic orders --unclean",
    ),
    "scriba cluster may-restart": ("scriba cluster may-restart 2",),
    "scriba node": ("scriba node list", "scriba node kill 2"),
    "scriba node list": ("scriba node list --json",),
    "scriba node kill": ("scriba node kill 2",),
    "scriba node pause": ("scriba node pause 2",),
    "scriba node resume": ("scriba node resume 2",),
    "scriba node stop": ("scriba node stop 2",),
    "scriba node start": (
        "scriba node start 2 --data /var/lib/scriba",
        "scriba node start 1 2 3",
    ),
    "scriba log": ("scriba log dump scriba-data/orders-0",),
    "scriba log dump": (
        "scriba log dump scriba-data/orders-0 --records",
        "scriba log dump --quiet scriba-data/orders-0",
    ),
    "scriba log repair": (
        "scriba log repair scriba-data",
        "scriba log repair scriba-data/orders-0 --yes",
    ),
    "scriba log retention": ("scriba log retention status",),
    "scriba log retention status": ("scriba log retention status --json",),
    "scriba log retention resume": ("scriba log retention resume --node 1",),
    # -- pipelines
    "scriba spark": ("scriba spark doctor",),
    "scriba spark doctor": ("scriba spark doctor --run",),
    "scriba inventory": (
        "scriba inventory serve --allow-single-node",
        "scriba inventory receive apple=10 pear=4",
    ),
    "scriba inventory serve": ("scriba inventory serve --allow-single-node",),
    "scriba inventory receive": ("scriba inventory receive apple=10 pear=4",),
    "scriba inventory order": ("scriba inventory order apple=3 pear=5 --id order-77",),
    "scriba inventory adjust": (
        "scriba inventory adjust apple=5 --counted --reason 'two were rotten'",
    ),
    "scriba inventory stock": ("scriba inventory stock",),
    "scriba inventory history": ("scriba inventory history apple",),
    "scriba inventory view": (
        "scriba inventory view --checkpoint checkpoints/view --allow-single-node",
    ),
    "scriba inventory archive": (
        "scriba inventory archive --to lake --checkpoint checkpoints/lake",
    ),
    "scriba inventory reconcile": ("scriba inventory reconcile --lake lake",),
    "scriba shop": ("scriba shop generate --backfill 30m", "scriba shop run"),
    "scriba shop generate": ("scriba shop generate --backfill 30m --rate 50",),
    "scriba shop collect": ("scriba shop collect",),
    "scriba shop run": ("scriba shop run --checkpoints checkpoints",),
    "scriba shop dashboard": ("scriba shop dashboard",),
    "scriba shop archive": ("scriba shop archive", "scriba shop archive --compact"),
    "scriba shop query": (
        "scriba shop query top-products",
        "scriba shop query --sql 'SELECT device, count(*) FROM events GROUP BY device'",
    ),
    # -- profiles
    "scriba profile": (
        "scriba profile add staging --bootstrap kafka-1:9092,kafka-2:9092",
        "scriba profile use staging",
    ),
    "scriba profile add": (
        "scriba profile add staging --bootstrap kafka-1:9092,kafka-2:9092 --use",
        "scriba profile add local --bootstrap 127.0.0.1:9092 -X client.id=ann",
    ),
    "scriba profile list": ("scriba profile list",),
    "scriba profile use": ("scriba profile use staging", "scriba profile use --none"),
    "scriba profile show": ("scriba profile show staging",),
    "scriba profile remove": ("scriba profile remove staging",),
    # -- scriba itself
    "scriba completion": ('eval "$(scriba completion bash)"',),
    "scriba help": ("scriba help topic create",),
    "scriba version": ("scriba version --json",),
}
