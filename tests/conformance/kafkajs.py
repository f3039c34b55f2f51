"""kafkajs from Python: steps go to `js/client.js`, which runs them one after the other.

kafkajs itself lies in `.cache/node`, brought by `tools/setup.sh kafkajs`.
"""

import base64
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from tools.kafka.brokers import Cluster

HERE = Path(__file__).resolve().parent
PACKAGES = HERE.parents[1] / ".cache" / "node" / "node_modules"

Step: TypeAlias = list[Any]
Header: TypeAlias = tuple[str, bytes | None]


def kafkajs(cluster: Cluster, *steps: Step) -> list[Any]:
    """What each step gave; any that fails fails the whole."""
    assert PACKAGES.is_dir(), "kafkajs is missing: run make setup"
    done = subprocess.run(
        ["node", "--no-warnings", str(HERE / "js" / "client.js"), cluster.bootstrap],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NODE_PATH": str(PACKAGES)},
    )
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout)
    return told


def stream(cluster: Cluster, topic: str, partitions: int) -> "subprocess.Popen[str]":
    """A process that writes and reads until its input ends, and tells what (`js/stream.js`)."""
    assert PACKAGES.is_dir(), "kafkajs is missing: run make setup"
    script = str(HERE / "js" / "stream.js")
    return subprocess.Popen(
        ["node", "--no-warnings", script, cluster.bootstrap, topic, str(partitions)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NODE_PATH": str(PACKAGES)},
    )


def message(
    value: bytes | None,
    key: bytes | None = None,
    headers: Iterable[Header] = (),
    partition: int = 0,
    timestamp: int | None = None,
) -> dict[str, Any]:
    made = {
        "key": _text(key),
        "value": _text(value),
        "headers": [[name, _text(content)] for name, content in headers],
        "partition": partition,
    }
    return made if timestamp is None else {**made, "timestamp": str(timestamp)}


def send(
    topic: str,
    messages: list[dict[str, Any]],
    acks: int = -1,
    codec: str = "none",
    settings: dict[str, Any] | None = None,
) -> Step:
    batch = {"topic": topic, "acks": acks, "codec": codec, "messages": messages}
    return ["send", settings or {}, batch]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
