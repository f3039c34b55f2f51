"""The settings of a node's log cleaner, declared."""

import sys
from typing import Final

from scriba.config import ConfigError, Kind, Scope, Settings, setting

LEAST_MAP_BYTES: Final = 1 << 20


def _share(given: float) -> str | None:
    return None if 0 < given <= 1 else "must be above 0 and at most 1"


def _rate(given: float) -> str | None:
    return None if 0 < given <= sys.float_info.max else "must be above 0 and finite"


class CleanerKeys(Settings):
    log_cleaner_backoff_ms: int = setting(
        Kind.LONG,
        default=15_000,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        doc="Interval between checks for logs to compact, when the last one found none.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        Kind.LONG,
        default=134_217_728,
        scope=Scope.CLUSTER_WIDE,
        doc="Memory for the keys of the logs under compaction, all `log.cleaner.threads` together.",
    )
    log_cleaner_enable: bool = setting(
        Kind.BOOLEAN,
        default=True,
        doc="Whether logs are compacted. Without it compacted topics only grow, "
        "`__consumer_offsets` among them.",
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        Kind.DOUBLE,
        default=0.9,
        check=_share,
        scope=Scope.CLUSTER_WIDE,
        doc="How full the memory for keys may get before what it holds is cleaned. Fuller means "
        "fewer passes and slower ones.",
    )
    log_cleaner_io_buffer_size: int = setting(
        Kind.INT,
        default=524_288,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        doc="Memory for reading and writing, all `log.cleaner.threads` together. A larger batch "
        "takes what it needs.",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        Kind.DOUBLE,
        default=sys.float_info.max,
        check=_rate,
        scope=Scope.CLUSTER_WIDE,
        doc="Most bytes that all compaction together reads and writes in a second.",
    )
    log_cleaner_threads: int = setting(
        Kind.INT,
        default=1,
        at_least=0,
        scope=Scope.CLUSTER_WIDE,
        doc="Logs that are compacted at a time, each in a process of its own.",
    )

    def check_cleaner(self) -> None:
        """What no single value can tell: every cleaner needs some memory."""
        threads = self.log_cleaner_threads
        if threads < 1:
            raise ConfigError(
                "log.cleaner.threads",
                "must be at least 1; log.cleaner.enable=false is for none",
                str(threads),
            )
        if self.log_cleaner_dedupe_buffer_size // threads <= LEAST_MAP_BYTES:
            raise ConfigError(
                "log.cleaner.dedupe.buffer.size",
                f"must be above {LEAST_MAP_BYTES} for each of log.cleaner.threads={threads}",
                str(self.log_cleaner_dedupe_buffer_size),
            )
