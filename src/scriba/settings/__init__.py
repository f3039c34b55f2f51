"""Every setting, declared once: `TopicSettings` for topics, `NodeSettings` for nodes."""

from scriba.settings.describe import describe_broker, describe_cluster, describe_topic
from scriba.settings.listeners import Endpoint
from scriba.settings.node import NodeSettings
from scriba.settings.topic import TopicSettings

__all__ = [
    "Endpoint",
    "NodeSettings",
    "TopicSettings",
    "describe_broker",
    "describe_cluster",
    "describe_topic",
]
