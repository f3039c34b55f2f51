"""`quorum-state`: the epoch, its leader and the vote of a node, which no crash may take back."""

from typing import Final

from scriba.config import StartError
from scriba.errors import ParseError
from scriba.raft.messages import HardState, Voter
from scriba.runtime.ports import Disk
from scriba.storage.results import storage_error
from scriba.wire.messages.stored import (
    QuorumStateData,
    decode_quorum_state,
    encode_quorum_state,
)

QUORUM_STATE: Final = "quorum-state"


async def write(disk: Disk, directory: str, state: HardState) -> None:
    """KafkaError when the device does not take it, NoRoom if it is full."""
    data = QuorumStateData(
        leader_id=-1 if state.leader is None else state.leader,
        leader_epoch=state.epoch,
        voted_id=state.voted.id if state.voted else -1,
        voted_directory_id=state.voted.directory if state.voted else bytes(16),
    )
    path = f"{directory}/{QUORUM_STATE}"
    try:
        await disk.write_atomic(path, encode_quorum_state(data))
    except OSError as error:
        raise storage_error(f"{path} cannot be written: {error}", error) from error


def read(disk: Disk, directory: str) -> HardState:
    path = f"{directory}/{QUORUM_STATE}"
    if not disk.exists(path):
        return HardState(0)
    try:
        state = decode_quorum_state(disk.read(path))
    except ParseError as error:
        raise StartError(
            f"{path} is damaged ({error}); restore it from a copy, or remove it if this node is "
            "the only controller"
        ) from error
    voted = Voter(state.voted_id, state.voted_directory_id) if state.voted_id >= 0 else None
    return HardState(
        max(state.leader_epoch, 0), state.leader_id if state.leader_id >= 0 else None, voted
    )
