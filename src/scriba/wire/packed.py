"""An array of a message that exists only as bytes.

An answer that lists a hundred thousand things is a hundred times larger as objects than as bytes.
`Packed` stands where the list would: what is added is encoded at once and forgotten.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from scriba.wire.schema import Message, TooMany

STEP_BYTES: Final = 1 << 15


class Packed:
    """The elements of one array of `message`, in one version; for `encode_in_slices` only."""

    __slots__ = ("_count", "_encode", "pieces", "size")

    def __init__(self, message: type[Message], name: str, version: int) -> None:
        self._encode = message.element_encoder(name, version)
        self.pieces: deque[bytes] = deque()
        """The bytes of all elements, many in one piece."""
        self._count = 0
        self.size = 0

    def extend(self, elements: Iterable[Any]) -> None:
        out = bytearray()
        for element in elements:
            self._encode(element, out, None, 0)
            self._count += 1
        self.size += len(out)
        self.pieces.append(bytes(out))

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
