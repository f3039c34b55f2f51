"""Writes docs/configuration.md from the declarations of the settings."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from scriba.client.settings import ConsumerSettings, ProducerSettings
from scriba.config import Setting
from scriba.settings import GroupConfigs, NodeSettings, TopicSettings, differences
from scriba.settings.unsupported import ADVICE, GONE, LATER, NOT_APPLICABLE, ONE_NODE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

HEAD = """\
# Settings

<!-- Written by `make docs` from the declarations in src/scriba/settings; do not edit. -->

Names, types, bounds and defaults are those of Apache Kafka 4.3; the few defaults that are not stand
[below](#defaults-that-are-not-kafkas). [Starting a node](starting.md) says where settings are given
and which source wins.
"""

TOPIC_HEAD = """
## Topic settings

Set when a topic is created and at any time after. What a topic does not set comes from the node
setting in the last column, the first that is set.
"""

GROUP_HEAD = """
## Group settings

Set at any time for a single group of the consumer protocol, which need not exist yet. What a group
does not set comes from the node setting in the last column, whose `min` and `max` bound it.
"""

NODE_HEAD = """
## Node settings

Those marked *read-only* are given at start. The others can also be changed while the node runs:
*cluster-wide* for all brokers or for one, *per-broker* for one only.
"""

DIFFERENT_HEAD = """
## Defaults that are not Kafka's

Each with its reason. A test compares all others, those of the clients too, with what Kafka's jars
declare.

| Of | Here | Why |
|---|---|---|
"""

BEHAVIOUR_HEAD = """
And where something happens that no setting says:

"""

IGNORED_HEAD = """
## Accepted and ignored

These keys of Kafka have no meaning here. A node that finds one says so in one line and starts.

"""

LATER_HEAD = """
## Not served yet

These belong to features that are still to come. Kafka's default is accepted, any other value is
refused, so that nobody relies on a setting without effect. The values that one-node installations
of Kafka usually carry are accepted with a note: {values}.

"""

REFUSED_HEAD = """
## Refused with advice

"""


def page() -> str:
    values = ", ".join(f"`{name}={value}`" for name, value in ONE_NODE.items())
    parts = [
        HEAD,
        TOPIC_HEAD,
        *table(TopicSettings.table.values(), "From the node", origin),
        GROUP_HEAD,
        *table(GroupConfigs.table.values(), "From the node", origin),
        NODE_HEAD,
        *table(NodeSettings.table.values(), "Changes", lambda setting: setting.scope.value),
        DIFFERENT_HEAD,
        *different(differences.NODE, NodeSettings.table),
        *different(differences.CLIENT, {**ConsumerSettings.table, **ProducerSettings.table}),
        BEHAVIOUR_HEAD,
        *(f"- {when}: {what}.\n" for when, what in differences.BEHAVIOUR.items()),
        IGNORED_HEAD,
        *groups(NOT_APPLICABLE.items()),
        f"- *Kafka 4 no longer reads them*: {keys(sorted(GONE))}, and `confluent.*`.\n",
        LATER_HEAD.format(values=values),
        *groups((name, feature) for name, (feature, _) in LATER.items()),
        REFUSED_HEAD,
        *(f"- `{name}`: {advice}.\n" for name, advice in ADVICE.items()),
    ]
    return "".join(parts)


def table(settings: Iterable[Setting], last: str, note: Callable[[Setting], str]) -> Iterator[str]:
    yield f"\n| Setting | Type | Default | Allowed | Meaning | {last} |\n"
    yield "|---|---|---|---|---|---|\n"
    for setting in settings:
        if setting.internal:
            continue
        default = setting.render(setting.default)
        cells = [
            f"`{setting.name}`",
            setting.kind.name.lower(),
            "" if default is None else f"`{default}`" if default else "empty",
            f"default only ({setting.feature} to come)" if setting.feature else setting.bounds(),
            setting.doc,
            note(setting),
        ]
        yield f"| {' | '.join(cells)} |\n"


def different(reasons: Mapping[str, str], table: Mapping[str, Setting]) -> Iterator[str]:
    for name, reason in reasons.items():
        default = table[name].render(table[name].default)
        yield f"| `{name}` | {f'`{default}`' if default else 'empty'} | {reason} |\n"


def origin(setting: Setting) -> str:
    return keys(setting.synonyms)


def groups(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for name, group in pairs:
        grouped[group].append(name)
    for group, names in grouped.items():
        yield f"- *{group}*: {keys(names)}.\n"


def keys(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(Path.cwd())}\n")
