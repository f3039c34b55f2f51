"""What type checkers know of the clients: their settings, their records, what a package offers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import scriba.client
from tools import keywords

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """\
from typing import Any
from scriba.client import Admin, Consumer, ErrorCode, ConfigError, Producer, SyncConsumer
from scriba.client import BrokerError, SyncProducer, TopicDescription

def length(data: bytes) -> int:
    return len(data)

async def main() -> None:
    Producer(bootstrap_server="localhost:9092")  # error: bootstrap_server
    Producer(bootstrap_servers="localhost:9092", linger_ms="soon")  # error: linger_ms
    Producer(bootstrap_servers=["a:1", "b:1"], acks=1, compression_type="zstd")
    Producer(bootstrap_servers="a:1", compression_type="zip")  # error: compression_type
    SyncProducer(bootstrap_servers="a:1", batch_sise=1)  # error: batch_sise
    SyncProducer({"bootstrap.servers": "a:1"}, linger_ms=20)
    Admin(bootstrap_servers="a:1", group_id="g")  # error: group_id
    Consumer(bootstrap_servers="a:1", group_id="g", ports=None)  # error: ports
    plain = Consumer(bootstrap_servers="a:1", group_id="g")
    reveal_type((await plain.poll())[0].value)  # note: bytes | None
    counted = Consumer(bootstrap_servers="a:1", value_deserializer=length)
    reveal_type((await counted.poll())[0].value)  # note: int | None
    async for record in counted:
        reveal_type(record.key)  # note: bytes | None
    both = SyncConsumer(bootstrap_servers="a:1", key_deserializer=length, value_deserializer=str)
    reveal_type(next(both).key)  # note: int | None
    reveal_type(next(both).value)  # note: str | None
    lambdas = Consumer(bootstrap_servers="a:1", value_deserializer=lambda data: data.decode())
    reveal_type((await lambdas.poll())[0].value)  # note: str | None
    keyed = SyncConsumer(bootstrap_servers="a:1", key_deserializer=lambda data: len(data))
    reveal_type(next(keyed).key)  # note: int | None
    reveal_type(next(keyed).value)  # note: bytes | None
    mixed = Consumer(bootstrap_servers="a:1", key_deserializer="str", value_deserializer=length)
    reveal_type((await mixed.poll())[0].value)  # note: Any
    optional: dict[str, str] | None = None
    Consumer(optional, value_deserializer=length)
    named = Consumer(bootstrap_servers="a:1", value_deserializer="json")
    reveal_type((await named.poll())[0].value)  # note: Any
    said: Consumer[str, dict[str, int]] = Consumer({"bootstrap.servers": "a:1"})
    reveal_type((await said.poll())[0].value)  # note: dict[str, int]
    bare: Consumer = Consumer({"bootstrap.servers": "a:1"})
    reveal_type((await bare.poll())[0].value)  # note: Any
    async with Admin(bootstrap_servers="a:1") as admin:
        found: dict[str, TopicDescription] = await admin.describe_topics(["t"])
        print(found)

def code(error: BrokerError) -> ErrorCode | ConfigError:
    return error.code
"""


def test_type_checkers_find_misspelt_settings_and_know_what_records_hold(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary"]
    command += ["--config-file", "", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    told: dict[int, str] = {}
    for line in done.stdout.splitlines():
        found = re.match(r".*program\.py:(\d+): (.*)", line)
        if found:
            told[int(found[1])] = told.get(int(found[1]), "") + found[2]
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        code, _, expected = line.partition("  # ")
        if not expected:
            assert number not in told, f"{code.strip()}: {told[number]}"
        else:
            kind, _, what = expected.partition(": ")
            assert number in told, f"{code.strip()}: nothing was said\n{done.stdout}{done.stderr}"
            assert told[number].startswith(kind), told[number]
            assert what in told[number]


def test_the_keywords_are_those_of_the_declarations() -> None:
    assert keywords.MODULE.read_text("utf-8") == keywords.module(), "run `make docs`"


@pytest.mark.parametrize("name", scriba.client.__all__)
def test_everything_the_package_names_is_there(name: str) -> None:
    assert getattr(scriba.client, name) is not None


def test_results_of_the_admin_are_exported() -> None:
    from scriba.client.admin import model as admin_model

    public = {
        n
        for n, v in vars(admin_model).items()
        if getattr(v, "__module__", "") == admin_model.__name__
    }
    assert public <= set(scriba.client.__all__)
