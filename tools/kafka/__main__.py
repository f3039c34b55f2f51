"""Apache Kafka from the command line: `python -m tools.kafka WHAT [ARGS]`.

`jars` brings all jars, `broker [--data DIR] [--port N] [key=value ...]` runs one broker until
Ctrl-C, and the name of a tool (`topics`, `configs`, `dump-log`, ...) runs that tool.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from tools.kafka import kafka_jars
from tools.kafka.brokers import KafkaBroker, running


def broker(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="broker")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kafka-") as scratch:
        settings = dict(pair.split("=", 1) for pair in wanted.settings)
        node = KafkaBroker(wanted.data or Path(scratch), settings)
        node.port = wanted.port
        with running(node):
            sys.stdout.write(f"listening on {node.bootstrap}, data in {node.log_dir}\n")
            sys.stdout.flush()
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


def main() -> None:
    match sys.argv[1:]:
        case ["jars"]:
            kafka_jars.jars(kafka_jars.STREAMS)
            sys.stdout.write(f"{kafka_jars.jars()}\n")
        case ["broker", *arguments]:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            broker(arguments)
        case [name, *arguments] if name in kafka_jars.TOOLS:
            line = kafka_jars.command(name, *arguments)
            os.execvp(line[0], line)
        case _:
            sys.exit(f"{__doc__}\nTools: {' '.join(kafka_jars.TOOLS)}")


if __name__ == "__main__":
    main()
