"""The first query of a Spark session, measured: for the rows of `spark.py` that are cold.

python bench/spark_cold.py WORK ONLY-OFFICIAL KIND PORT SCALE
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools" / "kafka")]

from brokers import KINDS  # noqa: E402
from rows import Bench  # noqa: E402

import spark  # noqa: E402


def main(work: str, only: str, kind: str, port: str, scale: str) -> None:
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder:
        broker = KINDS[kind](Path(folder))
        broker.port = int(port)  # it runs already
        bench = Bench(broker, float(scale), Path(folder))
        print(json.dumps(spark.moved(work, only == "True", bench)))


if __name__ == "__main__":
    main(*sys.argv[1:])
