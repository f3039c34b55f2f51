"""Who may ask as a broker: whoever may act for the cluster, on a listener that brokers use.

Requests of brokers read beyond the high watermark, move in-sync replicas and end transactions. They
are served on the inter-broker listener and on the controllers' ones, and nowhere else: a listener
for clients alone does not let anybody pass for a broker.
"""

from __future__ import annotations

from typing import Protocol

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.ports import Authorization, Configuration
from scriba.broker.request import Context
from scriba.errors import ErrorCode, KafkaError


class BrokerRecognition(Authorization, Configuration, Protocol):
    """What it takes to tell a broker from a client."""


def acts_as_broker(node: BrokerRecognition, ctx: Context) -> bool:
    settings = node.settings
    return (
        ctx.listener == settings.inter_broker_listener or ctx.listener in settings.controller_names
    ) and node.access.allowed(ctx, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)


def require_broker(node: BrokerRecognition, ctx: Context) -> None:
    """KafkaError (CLUSTER_AUTHORIZATION_FAILED) unless the caller may ask as a broker."""
    if not acts_as_broker(node, ctx):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"requests of brokers are not served on the listener {ctx.listener}, or not to you",
        )
