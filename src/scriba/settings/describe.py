"""Settings as DescribeConfigs shows them: every value with where it comes from."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from scriba.config import ConfigRow, Setting, Source, Synonym
from scriba.settings.group import GroupConfigs
from scriba.settings.node import NodeSettings
from scriba.settings.topic import TopicSettings

_NODE_LAYERS: Final = (
    Source.DYNAMIC_BROKER_CONFIG,
    Source.DYNAMIC_DEFAULT_BROKER_CONFIG,
    Source.STATIC_BROKER_CONFIG,
)


def describe_topic(
    overrides: Mapping[str, str], node: NodeSettings, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """A topic's settings, all or those named; unknown names are left out, as Kafka does."""
    topic = TopicSettings.resolve(overrides, node)
    rows: list[ConfigRow] = []
    for declaration in _chosen(TopicSettings.table, names, overrides):
        value = declaration.render(topic.value(declaration.name))
        synonyms = _words(declaration.synonyms[:1], node)
        if declaration.name in overrides:
            synonyms.insert(0, Synonym(declaration.name, value, Source.DYNAMIC_TOPIC_CONFIG))
        rows.append(_row(declaration, value, synonyms, read_only=False))
    return rows


def describe_group(
    overrides: Mapping[str, str], node: NodeSettings, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The settings of a group, which need not exist."""
    group = GroupConfigs.resolve(overrides, node)
    rows: list[ConfigRow] = []
    for declaration in _chosen(GroupConfigs.table, names, overrides):
        value = declaration.render(group.value(declaration.name))
        synonyms = _words(declaration.synonyms, node)
        if declaration.name in overrides:
            synonyms.insert(0, Synonym(declaration.name, value, Source.DYNAMIC_GROUP_CONFIG))
        rows.append(_row(declaration, value, synonyms, read_only=False))
    return rows


def describe_broker(node: NodeSettings, names: Collection[str] | None = None) -> list[ConfigRow]:
    """A broker's settings, all or those named."""
    static = node.layer(Source.STATIC_BROKER_CONFIG)
    return [
        _row(
            declaration,
            declaration.render(node.value(declaration.name)),
            _words((declaration.name,), node),
            read_only=declaration.read_only,
        )
        for declaration in _chosen(NodeSettings.table, names, static)
    ]


def describe_cluster(node: NodeSettings, names: Collection[str] | None = None) -> list[ConfigRow]:
    """What was set at run time for all brokers, and nothing else."""
    given = node.layer(Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
    rows: list[ConfigRow] = []
    for declaration in _chosen(NodeSettings.table, names, given):
        if declaration.name in given:
            value = declaration.render(declaration.parse(given[declaration.name]))
            word = Synonym(declaration.name, value, Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
            rows.append(_row(declaration, value, [word], read_only=declaration.read_only))
    return rows


def _chosen(
    table: Mapping[str, Setting], names: Collection[str] | None, given: Collection[str]
) -> Iterable[Setting]:
    for declaration in table.values():
        wanted = declaration.name in names if names is not None else not declaration.internal
        if wanted or (names is None and declaration.name in given):
            yield declaration


def _words(names: tuple[str, ...], node: NodeSettings) -> list[Synonym]:
    """What each layer of the node says about a setting, the one in force first.

    `log.retention.ms` and its kin speak through `log.retention.hours` when they are silent. Kafka
    lists those only after a word on the setting itself, so a topic whose retention comes from
    the hours has no synonyms and counts as default; clients that show the list expect that.
    """
    if not names:
        return []
    name = names[0]
    group = (name, *NodeSettings.table[name].synonyms)
    words: list[Synonym] = []
    for source in _NODE_LAYERS:
        given = node.layer(source)
        words += (
            Synonym(each, _shown(NodeSettings.table[each], given[each]), source)
            for each in group
            if each in given
        )
    words += (
        Synonym(each, declaration.render(declaration.default), Source.DEFAULT_CONFIG)
        for each in group
        if (declaration := NodeSettings.table[each]).default is not None
    )
    start = next((i for i, word in enumerate(words) if word.name == name), len(words))
    return words[start:]


def _shown(declaration: Setting, text: str) -> str | None:
    return None if declaration.sensitive else declaration.render(declaration.parse(text))


def _row(
    declaration: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool
) -> ConfigRow:
    return ConfigRow(
        name=declaration.name,
        value=None if declaration.sensitive else value,
        source=synonyms[0].source if synonyms else Source.DEFAULT_CONFIG,
        read_only=read_only,
        is_sensitive=declaration.sensitive,
        kind=declaration.kind,
        doc=declaration.doc,
        synonyms=tuple(synonyms),
    )
