"""What the coordinator is told from outside: its settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TxnSettings:
    """Plain values of the `transaction.*` settings, with Kafka's defaults.

    A shard swaps the whole object when one of them changes.
    """

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    """Least time between two looks for transactions that are open too long."""
    expiry_interval_ms: int = 3_600_000
    """Least time between two looks for transactional ids to forget."""
    two_phase_commit: bool = False
    transaction_version: int = 2
    """The finalised level of the feature `transaction.version`."""
