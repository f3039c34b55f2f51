"""Whether a play depends on the order of sets: its trace under two seeds of Python's hashes."""

import os
import subprocess
import sys


def digests_by_hash_seed(play: str, seed: int) -> list[str]:
    """The digests of a play of one seed, each by an interpreter with another seed of hashes."""
    program = f"from {play} import run; print(run({seed}).digest)"
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
