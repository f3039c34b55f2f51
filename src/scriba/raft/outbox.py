"""What the machine wants done, gathered until the shell asks for it.

Facts that change (hard state, leadership, high watermark) are told once for each change; messages
and orders are told once.
"""

from scriba.raft.messages import (
    FetchReply,
    HardState,
    Leadership,
    Position,
    Ready,
    Reply,
    Request,
)


class Outbox:
    def __init__(self, saved: HardState, high_watermark: int) -> None:
        self.truncate_to: int | None = None
        self.append: FetchReply | None = None
        self.fetch_snapshot: Position | None = None
        self.sends: list[tuple[int, Request]] = []
        self.replies: list[tuple[object, Reply]] = []
        self.faults: list[str] = []
        self._saved = saved
        self._told = Leadership(-1, None)
        self._told_high_watermark = high_watermark

    def take(
        self, hard_state: HardState, leadership: Leadership, high_watermark: int
    ) -> Ready | None:
        """What there is to do since the last call; None for nothing."""
        moved = high_watermark != self._told_high_watermark
        if not (
            hard_state != self._saved
            or leadership != self._told
            or moved
            or self.sends
            or self.replies
            or self.faults
            or self.append
            or self.truncate_to is not None
            or self.fetch_snapshot
        ):
            return None
        ready = Ready(
            hard_state if hard_state != self._saved else None,
            self.truncate_to,
            self.append,
            self.fetch_snapshot,
            leadership if leadership != self._told else None,
            high_watermark if moved else None,
            self.sends,
            self.replies,
            self.faults,
        )
        self._saved, self._told = hard_state, leadership
        self._told_high_watermark = high_watermark
        self.truncate_to = self.append = self.fetch_snapshot = None
        self.sends, self.replies, self.faults = [], [], []
        return ready
