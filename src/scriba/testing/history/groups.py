"""What members of groups were given, committed and found committed.

A *claim* is a member's partition from the moment it is assigned until it is revoked, or lost: with
`lost` it is the coordinator that has moved on without the member. All calls are taken down in the
order in which they happen; each has a turn.

Ownership. In one generation (or epoch) a partition has one owner. A member that gives a partition
up of its own accord has done so before a later generation gives it to somebody else.

Offsets. For each partition of a group, commits and fetches are writes and reads of one register. A
fetch returns a commit that it can have seen: one that was not refused and had begun before the
fetch ended, and that no other accepted commit has replaced before the fetch began. Nothing at all
may be found only while no commit was accepted. A commit without an answer may count at any time, or
never. Each commit carries a note of its own, so that it can be told from all others.

A commit that was accepted from a member whose partition a later generation had given to another is
one too many.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scriba.testing.history.findings import Findings, Where, place

Noted = tuple[int, str]
"""An offset, and the note that came with it."""

Register = tuple[str, Where]
"""The offset of a group in one partition."""


@dataclass(slots=True)
class Claim:
    member: str
    generation: int
    began: int
    ended: float = math.inf
    given_up: bool = False
    """It ended by the member's own act, and not because it was lost."""


@dataclass(slots=True)
class Commit:
    group: str
    member: str
    generation: int
    offsets: dict[Where, Noted]
    began: int
    ended: float = math.inf
    accepted: bool = False
    refused: bool = False


@dataclass(slots=True)
class Fetch:
    group: str
    began: int


@dataclass(slots=True)
class Groups(Findings):
    claims: dict[Register, list[Claim]] = field(default_factory=dict)
    commits: dict[Register, list[Commit]] = field(default_factory=dict)
    polled: dict[Register, set[int]] = field(default_factory=dict)
    accepted: int = 0
    fetched_offsets: int = 0
    _turn: int = 0

    def _next(self) -> int:
        self._turn += 1
        return self._turn

    # ---- ownership ----

    def assigned(
        self, group: str, member: str, generation: int, partitions: Iterable[Where]
    ) -> None:
        """In addition to what the member has."""
        turn = self._next()
        for where in partitions:
            claims = self.claims.setdefault((group, where), [])
            for other in claims:
                if other.generation == generation >= 0 and other.member != member:
                    self.violation(
                        f"{group} in generation {generation}: {place(where)} was given to "
                        f"{other.member} and to {member}"
                    )
            claims.append(Claim(member, generation, turn))

    def revoked(self, group: str, member: str, partitions: Iterable[Where]) -> None:
        """The member gives them up, being asked to."""
        self._end(group, member, partitions, given_up=True)

    def lost(self, group: str, member: str, partitions: Iterable[Where]) -> None:
        """The member hears that others may have them, or leaves, or is gone."""
        self._end(group, member, partitions, given_up=False)

    def gone(self, group: str, member: str) -> None:
        """The member's process has ended."""
        self.lost(group, member, [where for name, where in self.claims if name == group])

    def _end(self, group: str, member: str, partitions: Iterable[Where], given_up: bool) -> None:
        turn = self._next()
        for where in partitions:
            for claim in self.claims.get((group, where), ()):
                if claim.member == member and claim.ended == math.inf:
                    claim.ended, claim.given_up = turn, given_up

    def owners(self, group: str) -> dict[Where, str]:
        """Who has each partition now, as the members believe."""
        return {
            where: claim.member
            for (name, where), claims in self.claims.items()
            for claim in claims
            if name == group and claim.ended == math.inf
        }

    def poll(self, group: str, where: Where, offsets: Iterable[int]) -> None:
        self.polled.setdefault((group, where), set()).update(offsets)

    # ---- offsets ----

    def commit(
        self, group: str, member: str, generation: int, offsets: Mapping[Where, Noted]
    ) -> Commit:
        commit = Commit(group, member, generation, dict(offsets), self._next())
        for where in offsets:
            self.commits.setdefault((group, where), []).append(commit)
        return commit

    def accept(self, commit: Commit) -> None:
        commit.ended, commit.accepted = self._next(), True
        self.accepted += 1
        for where in commit.offsets:
            for claim in self.claims.get((commit.group, where), ()):
                if (
                    claim.member != commit.member
                    and claim.generation > commit.generation >= 0
                    and claim.began < commit.began
                ):
                    self.violation(
                        f"{commit.group} at {place(where)}: a commit of {commit.member} in "
                        f"generation {commit.generation} was accepted, after {claim.member} had it "
                        f"in {claim.generation}"
                    )

    def refuse(self, commit: Commit) -> None:
        """It did not happen, and will not."""
        commit.ended, commit.refused = self._next(), True

    def fetch(self, group: str) -> Fetch:
        return Fetch(group, self._next())

    def fetched(self, fetch: Fetch, offsets: Mapping[Where, Noted | None]) -> None:
        ended = self._next()
        for where, found in offsets.items():
            self.fetched_offsets += 1
            commits = [
                each
                for each in self.commits.get((fetch.group, where), ())
                if not each.refused and each.began < ended
            ]
            settled = [each for each in commits if each.accepted and each.ended < fetch.began]
            if found is None:
                fits = not settled
            else:
                fits = any(
                    each.offsets[where] == found
                    and not any(later.began > each.ended for later in settled)
                    for each in commits
                )
            if not fits:
                newest = max(settled, key=lambda each: each.began, default=None)
                known = None if newest is None else newest.offsets[where]
                self.violation(
                    f"{fetch.group} at {place(where)}: fetched {found}, last accepted is {known}"
                )

    # ---- in the end ----

    def check(self, due: Mapping[Register, Iterable[int]] | None = None) -> None:
        """Looks at all claims together; `due` are offsets of records that a group has passed."""
        for (group, where), claims in self.claims.items():
            for old in claims:
                for new in claims:
                    if (
                        old.member != new.member
                        and old.generation < new.generation
                        and old.given_up
                        and new.began < old.ended
                    ):
                        self.violation(
                            f"{group} at {place(where)}: {new.member} had it in generation "
                            f"{new.generation} before {old.member} of {old.generation} gave it up"
                        )
        for (group, where), offsets in (due or {}).items():
            missed = set(offsets) - self.polled.get((group, where), set())
            if missed:
                self.violation(
                    f"{group} at {place(where)}: {len(missed)} records were passed and given to "
                    f"nobody, the first at {min(missed)}"
                )
