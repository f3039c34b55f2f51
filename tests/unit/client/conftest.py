"""A cluster of scripted brokers on a simulated network, for tests of the clients."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
