"""`scriba config`: read and change settings of topics and brokers while the cluster runs."""

import argparse
from typing import Any, Final

from scriba.cli.output import note, print_json, print_table
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.session import with_admin
from scriba.client import Admin, ConfigResource
from scriba.client.admin.model import ConfigEntry
from scriba.config import Source, did_you_mean

_SOURCES: Final[dict[int, str]] = {
    Source.DYNAMIC_TOPIC_CONFIG: "topic",
    Source.DYNAMIC_BROKER_CONFIG: "broker",
    Source.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    Source.STATIC_BROKER_CONFIG: "start of the broker",
    Source.DEFAULT_CONFIG: "default",
}
"""Who gave a value, for people; other sources of Kafka stay numbers."""


@with_admin
async def get(admin: Admin, options: argparse.Namespace) -> int:
    resource = await _resource(admin, options)
    found = (await admin.describe_configs([resource]))[resource]
    if options.keys:
        entries = [_entry(found, key, resource) for key in options.keys]
    else:
        entries = [found[n] for n in sorted(found) if options.all or not found[n].is_default]
    if options.json:
        print_json([_document(entry) for entry in entries])
    elif entries:
        rows = [(e.name, _value(e), _SOURCES.get(e.source, str(e.source))) for e in entries]
        print_table(["SETTING", "VALUE", "FROM"], rows)
    else:
        note(f"{resource} has no settings but the defaults; --all shows them")
    return 0


@with_admin
async def change(admin: Admin, options: argparse.Namespace) -> int:
    changes: dict[str, str | None] = dict(options.pairs)
    both = next((key for key in options.delete if key in changes), None)
    if both:
        raise Misuse(f"{both} is to be set and deleted at once; drop one of the two")
    changes.update(dict.fromkeys(options.delete))
    if not changes:
        raise Misuse("nothing to change", "give KEY=VALUE or --delete KEY")
    resource = await _resource(admin, options)
    await admin.alter_configs({resource: changes}, validate_only=options.dry_run)
    if options.json:
        print_json({"resource": _named(resource), "changed": changes, "dry_run": options.dry_run})
        return 0
    for key, value in changes.items():
        done = "would be" if options.dry_run else "is"
        what = f"{key} {done} the default again" if value is None else f"{key} {done} {value}"
        print(f"{resource}: {what}")
    return 0


async def _resource(admin: Admin, options: argparse.Namespace) -> ConfigResource:
    if options.topic is not None:
        return ConfigResource.topic(options.topic)
    if options.broker is not None:
        # A broker is asked itself: one that is not there would be waited for.
        there = sorted(node.id for node in (await admin.describe_cluster()).nodes)
        if options.broker not in there:
            known = ", ".join(map(str, there))
            raise CommandError(f"there is no broker {options.broker}; the cluster has {known}")
    return ConfigResource.broker(options.broker)  # without an id it stands for all brokers


def _named(resource: ConfigResource) -> dict[str, str]:
    kind = resource.type.name.lower() if resource.name else "cluster"
    return {"type": kind, "name": resource.name}


def _entry(found: dict[str, ConfigEntry], key: str, resource: ConfigResource) -> ConfigEntry:
    if key not in found:
        raise CommandError(f"{resource} has no setting {key}{did_you_mean(key, found)}")
    return found[key]


def _value(entry: ConfigEntry) -> str | None:
    return "(hidden)" if entry.sensitive else entry.value


def _document(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": _source(entry.source),
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "type": entry.kind.name.lower() if entry.kind is not None else None,
        "synonyms": [
            {"name": s.name, "value": s.value, "source": _source(s.source)} for s in entry.synonyms
        ],
    }


def _source(source: Source | int) -> str:
    return source.name if isinstance(source, Source) else str(source)
