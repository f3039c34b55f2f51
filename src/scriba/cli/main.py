"""`scriba`: reads the arguments, calls the command, turns what went wrong into one line."""

import argparse
import os
import sys
from collections.abc import Sequence

from scriba import __version__
from scriba.config import ConfigError, StartError

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when all went well, 1 when it did not, 2 for wrong arguments."""
    try:
        check_platform()
        options = parser().parse_args(arguments)
        from scriba.cli import up

        return up.run(options, os.environ)
    except (ConfigError, StartError) as error:
        print(f"scriba: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def check_platform() -> None:
    """Refuses where the data would not be safe."""
    if sys.platform == "win32":
        raise StartError("Windows is not supported; run it on Linux, macOS or in WSL")
    if not __debug__:
        raise StartError(
            "python -O switches off the checks that guard the data; start without -O and "
            "PYTHONOPTIMIZE"
        )


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="scriba", description="A distributed commit log that any Kafka client takes for Kafka."
    )
    top.add_argument("--version", action="version", version=f"scriba {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    up = commands.add_parser(
        "up",
        help="start a node",
        description="Starts one node, broker and controller at once, and runs it until Ctrl-C.",
        epilog="Settings are Kafka's. The stronger source wins, key by key: --set, then KAFKA_... "
        "variables (KAFKA_LOG_RETENTION_MS is log.retention.ms), then --config, then the default.",
    )
    up.add_argument("--data", metavar="DIR", help="where the data is (default: ./scriba-data)")
    up.add_argument(
        "--port", type=port, metavar="N", help="port on 127.0.0.1 (default: 9092; 0: any free one)"
    )
    up.add_argument("--config", metavar="FILE", help="a server.properties to read")
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="one setting; may be repeated",
    )
    up.add_argument("--demo", action="store_true", help="create a topic to play with")
    up.add_argument("--verbose", "-v", action="store_true", help="log what the node does")
    return top


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return number
