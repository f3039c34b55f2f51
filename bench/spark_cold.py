"""The first query of a Spark session, measured: for the rows of `spark.py` that are cold.

python -m bench.spark_cold WORK ONLY-OFFICIAL KIND PORT SCALE
"""

import json
import sys
import tempfile
from pathlib import Path

from bench import spark
from bench.rows import Bench
from tools.kafka.brokers import KINDS


def main(work: str, only: str, kind: str, port: str, scale: str) -> None:
    with tempfile.TemporaryDirectory(prefix="scriba-bench-") as folder:
        broker = KINDS[kind](Path(folder))
        broker.port = int(port)  # it runs already
        bench = Bench(broker, float(scale), Path(folder))
        print(json.dumps(spark.moved(work, only == "True", bench)))


if __name__ == "__main__":
    main(*sys.argv[1:])
