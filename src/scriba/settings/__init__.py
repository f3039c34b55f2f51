"""Every setting, declared once: `NodeSettings` for nodes, `TopicSettings` for topics and
`GroupConfigs` for single groups."""

from scriba.settings.describe import (
    describe_broker,
    describe_cluster,
    describe_group,
    describe_topic,
)
from scriba.settings.group import GroupConfigs
from scriba.settings.listeners import Endpoint
from scriba.settings.node import NodeSettings
from scriba.settings.topic import TopicSettings

__all__ = [
    "Endpoint",
    "GroupConfigs",
    "NodeSettings",
    "TopicSettings",
    "describe_broker",
    "describe_cluster",
    "describe_group",
    "describe_topic",
]
