"""One raft machine by itself, whose clock is moved by hand."""

from typing import Any

from scriba.instant import Instant
from scriba.raft.epochs import EpochTable
from scriba.raft.machine import Raft
from scriba.raft.messages import HardState, Position, Ready, Voter, VoteReply
from scriba.raft.roles import Role, Timeouts

ONE, TWO, THREE = (Voter(i, bytes([i]) * 16) for i in (1, 2, 3))
OBSERVER = Voter(9, b"9" * 16)
TIMEOUTS = Timeouts(election_ms=100, fetch_ms=200, request_ms=100)


class Bench:
    """A machine whose clock is moved by hand."""

    def __init__(
        self,
        own: Voter = ONE,
        voters: tuple[Voter, ...] = (ONE, TWO, THREE),
        hard: HardState | None = None,
        epochs: tuple[tuple[int, int], ...] = (),
        end: int = 0,
    ) -> None:
        self.now = Instant(0, 10_000)
        table = EpochTable(Position(0, 0), epochs, end)
        hard = hard or HardState(0)
        self.raft = Raft(own, voters, hard, table, end, lambda n: 0, self.now, TIMEOUTS)

    def role(self) -> Role:
        """By a call: a type checker takes an attribute to be what it was last compared with."""
        return self.raft.role

    def ready(self) -> Ready:
        ready = self.raft.ready()
        assert ready is not None
        return ready

    def sends(self) -> dict[int, Any]:
        ready = self.raft.ready()
        return dict(ready.sends) if ready else {}

    def step(self, sender: Voter, message: Any, token: object = "token") -> Any:
        self.raft.step(sender.id, message, self.now, token)

    def ask(self, sender: Voter, message: Any) -> Any:
        self.step(sender, message, "asked")
        ready = self.raft.ready()
        return dict(ready.replies).get("asked") if ready else None

    def pass_time(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        self.raft.tick(self.now)

    def elect(self) -> "Bench":
        """Makes the machine leader of the next epoch with the vote of node 2."""
        self.pass_time(1000)
        self.step(TWO, VoteReply(self.raft.epoch, None, True, pre_vote=True))
        self.step(TWO, VoteReply(self.raft.epoch, None, True, pre_vote=False))
        assert self.role() is Role.LEADER
        self.raft.ready()
        return self
