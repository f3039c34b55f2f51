"""Live brokers, shared with the benchmarks: see tools/kafka."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "kafka"))

from broker_fixtures import cluster, new_topic, own_cluster, topic

__all__ = ["cluster", "new_topic", "own_cluster", "topic"]
