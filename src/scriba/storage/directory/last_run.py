"""`.scriba_last_run`: which process of the broker uses a log directory, and what it knew.

It is a marked file (`Disk.mark`): it counts only while the page cache holds all that was written. A
process writes it twice: before it registers, and when it has its epoch. One that is killed in
between may or may not have registered, so the next one goes on under its incarnation: registering
twice as the same is registering once.
"""

import json
from typing import Final, NamedTuple

FILE_NAME: Final = ".scriba_last_run"


class LastRun(NamedTuple):
    incarnation: bytes
    broker_epoch: int
    """Of that incarnation; -1 where it had no answer."""
    previous_epoch: int
    """The last epoch before it under which nothing was lost; -1 if there is none."""

    def encode(self) -> bytes:
        content = {
            "version": 0,
            "incarnation": self.incarnation.hex(),
            "brokerEpoch": self.broker_epoch,
            "previousBrokerEpoch": self.previous_epoch,
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, data: bytes) -> "LastRun | None":
        """None where it says nothing that can be read."""
        try:
            content = json.loads(data)
            if content["version"] != 0:
                return None
            return cls(
                bytes.fromhex(content["incarnation"]),
                int(content["brokerEpoch"]),
                int(content["previousBrokerEpoch"]),
            )
        except (ValueError, TypeError, KeyError):
            return None
