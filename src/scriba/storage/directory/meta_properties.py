"""`meta.properties`: whose directory this is. Java's properties format, as Kafka writes it."""

import re
from typing import Final, NamedTuple

from scriba.wire.uuids import from_text, to_text

FILE_NAME: Final = "meta.properties"

_VERSION: Final = "1"
_PAIR: Final = re.compile(r"\s*((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)")
_ESCAPE: Final = re.compile(r"\\(.)")


class MetaProperties(NamedTuple):
    cluster_id: str
    node_id: int
    directory_id: bytes | None
    """None in a directory that an old Kafka formatted: it gets one when it is opened."""

    def encode(self) -> bytes:
        lines = ["#", f"cluster.id={self.cluster_id}"]
        if self.directory_id is not None:
            lines.append(f"directory.id={to_text(self.directory_id)}")
        lines += [f"node.id={self.node_id}", f"version={_VERSION}"]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def decode(cls, data: bytes) -> "MetaProperties":
        """ValueError, with the reason, when it cannot be read."""
        values = dict(_pairs(data.decode()))
        if values.get("version") != _VERSION:
            raise ValueError(f"version {values.get('version')} is not {_VERSION}")
        for key in ("cluster.id", "node.id"):
            if key not in values:
                raise ValueError(f"{key} is missing")
        directory = values.get("directory.id")
        return cls(
            values["cluster.id"],
            int(values["node.id"]),
            from_text(directory) if directory else None,
        )


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        if line.lstrip().startswith(("#", "!")):
            continue
        if found := _PAIR.fullmatch(line):
            pairs.append((_ESCAPE.sub(r"\1", found[1]), _ESCAPE.sub(r"\1", found[2])))
    return pairs
