"""An array of a message that exists only as bytes.

An answer that lists a hundred thousand things is a hundred times larger as objects than as bytes.
`Packed` stands where the list would: what is added is encoded in slices and forgotten. An element
may be large itself, a group with thousands of members for example: a step is one element of the
arrays in it.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

from scriba.wire.schema import Message, TooMany

STEP_BYTES: Final = 1 << 15
PIECE_BYTES: Final = 1 << 18
"""Bytes of a large answer that lie in one piece of memory."""


def in_short_steps(
    work: Generator[None, None, None], out: bytearray
) -> Generator[None, None, None]:
    """A step more for each STEP_BYTES that a step has written: who counts steps counts bytes, too.

    Whoever drives it may clear `out` between two steps.
    """
    before = len(out)
    for _ in work:
        written = len(out) - before
        yield
        for _ in range(written // STEP_BYTES):
            yield
        before = len(out)


class Packed:
    """The elements of one array of `message`, in one version; for `encode_in_slices` only."""

    __slots__ = ("_count", "_encode", "pieces", "size")

    def __init__(self, message: type[Message], name: str, version: int) -> None:
        self._encode = message.element_encoder(name, version)
        self.pieces: deque[bytes] = deque()
        """The bytes of all elements, many in one piece."""
        self._count = 0
        self.size = 0

    def adding(self, elements: Iterable[Any]) -> Generator[None, None, None]:
        """Encodes them, in slices."""
        out = bytearray()
        for element in elements:
            for _ in in_short_steps(self._encode(element, out, None, 0), out):
                if len(out) >= PIECE_BYTES:
                    self._keep(out)
                yield
            self._count += 1
        if out:
            self._keep(out)

    def _keep(self, out: bytearray) -> None:
        self.size += len(out)
        self.pieces.append(bytes(out))
        out.clear()

    def steps(self) -> Iterator[memoryview]:
        """The same in pieces that are copied in no time; none are left then.

        Memory of tens of megabytes takes as long to give back at once as it did to fill.
        """
        while self.pieces:
            view = memoryview(self.pieces.popleft())
            for at in range(0, len(view), STEP_BYTES):
                yield view[at : at + STEP_BYTES]

    def __len__(self) -> int:
        """How many elements there are."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        raise TooMany("an array that is packed already")
