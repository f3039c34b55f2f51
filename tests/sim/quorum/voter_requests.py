"""Requests to controllers by hand, and controllers that would be voters."""

from typing import Any

from scriba.broker.channels import NodeChannels
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.wire.messages import quorum as messages
from tests.sim.quorum.nodes import PORT, SimQuorum

SERVERS = "n1:9093,n2:9093,n3:9093"


async def ask(
    quorum: SimQuorum, target: int, request: Any, version: int | None = None, by: int | None = None
) -> Any:
    """One request from a node's process to the controller's listener of another."""
    asker = quorum.node(by or next(i for i in quorum.alive if i != target))
    channels = NodeChannels(asker)
    address = (f"n{target}", 9093)
    try:
        return await channels.call_at(target, address, request, version)
    finally:
        channels.close()


def new_controller(quorum: SimQuorum, node_id: int, /, **given: str) -> None:
    """A controller that is told whom to ask, and is no voter."""
    servers = given.pop("servers", SERVERS)
    quorum.add(
        node_id, controller_quorum_voters="", controller_quorum_bootstrap_servers=servers, **given
    )


def add_request(node: Node, **changes: Any) -> messages.AddRaftVoterRequest:
    facts: dict[str, Any] = {
        "cluster_id": node.cluster_id,
        "timeout_ms": 10_000,
        "voter_id": node.id,
        "voter_directory_id": node.metadata.quorum.raft.own.directory,
        "listeners": [
            messages.AddRaftVoterRequestListener(name="CONTROLLER", host=f"n{node.id}", port=PORT)
        ],
    }
    return messages.AddRaftVoterRequest(**(facts | changes))


def remove_request(node: Node, voter_id: int, **changes: Any) -> messages.RemoveRaftVoterRequest:
    known = node.metadata.quorum.raft.voters
    facts: dict[str, Any] = {
        "cluster_id": node.cluster_id,
        "voter_id": voter_id,
        "voter_directory_id": known[voter_id].directory if voter_id in known else b"?" * 16,
    }
    return messages.RemoveRaftVoterRequest(**(facts | changes))


def told(answer: Any) -> tuple[ErrorCode, str]:
    return ErrorCode(answer.error_code), answer.error_message or ""
