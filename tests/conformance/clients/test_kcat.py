"""kcat, the everyday tool, here with a librdkafka some years old: what it prints is compared."""

import json
import subprocess

import pytest

from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import T0, Connection, create_topic


def kcat(cluster: Broker, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-m", "20", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def made(cluster: Broker, topic: str) -> str:
    """A topic of two partitions."""
    with Connection(cluster.port) as connection:
        create_topic(connection, topic, partitions=2)
    return topic


def test_metadata_lists_brokers_topics_and_partitions(cluster: Broker, made: str) -> None:
    whole = json.loads(kcat(cluster, "-L", "-J"))
    (broker,) = whole["brokers"]
    assert broker["name"] == cluster.bootstrap
    (found,) = [topic for topic in whole["topics"] if topic["topic"] == made]
    assert [part["partition"] for part in found["partitions"]] == [0, 1]
    assert {part["leader"] for part in found["partitions"]} == {broker["id"]}
    plain = kcat(cluster, "-L", "-t", made)
    assert f'topic "{made}" with 2 partitions' in plain


def test_keys_values_and_headers_go_there_and_back(cluster: Broker, made: str) -> None:
    lines = "".join(f"key{n}:value {n}\n" for n in range(50))
    kcat(cluster, "-P", "-t", made, "-p", "1", "-K", ":", "-H", "from=kcat", stdin=lines)
    shown = kcat(
        cluster, "-C", "-t", made, "-p", "1", "-o", "beginning", "-e", "-q",
        "-f", "%p %o %k=%s %h %S\\n",
    )  # fmt: skip
    expected = [f"1 {n} key{n}=value {n} from=kcat {len(f'value {n}')}" for n in range(50)]
    assert shown.splitlines() == expected


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(cluster: Broker, made: str, codec: str) -> None:
    lines = "".join(f"{n} {'line ' * 20}\n" for n in range(200))
    kcat(cluster, "-P", "-t", made, "-p", "0", "-z", codec, stdin=lines)
    assert kcat(cluster, "-C", "-t", made, "-p", "0", "-o", "0", "-e", "-q") == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acknowledgement(cluster: Broker, made: str, acks: str) -> None:
    kcat(cluster, "-P", "-t", made, "-p", "0", "-X", f"acks={acks}", stdin="a\nb\n")
    assert kcat(cluster, "-C", "-t", made, "-p", "0", "-o", "0", "-c", "2", "-q") == "a\nb\n"


def test_an_idempotent_producer(cluster: Broker, made: str) -> None:
    lines = "".join(f"{n}\n" for n in range(100))
    kcat(cluster, "-P", "-t", made, "-p", "0", "-X", "enable.idempotence=true", stdin=lines)
    assert kcat(cluster, "-C", "-t", made, "-p", "0", "-o", "0", "-e", "-q") == lines


def test_reading_from_an_offset_the_tail_and_a_null_value(cluster: Broker, made: str) -> None:
    lines = "".join(f"{n}\n" for n in range(10))
    kcat(cluster, "-P", "-t", made, "-p", "0", stdin=lines)
    read = ["-C", "-t", made, "-p", "0", "-e", "-q"]
    assert kcat(cluster, *read, "-o", "7") == "7\n8\n9\n"
    assert kcat(cluster, *read, "-o", "-2") == "8\n9\n"
    kcat(cluster, "-P", "-t", made, "-p", "0", "-K", ":", "-Z", stdin="gone:\n")
    assert kcat(cluster, *read, "-o", "-1", "-f", "%k %S\\n") == "gone -1\n"


def test_offsets_are_queried_by_time(cluster: Broker, made: str) -> None:
    kcat(cluster, "-P", "-t", made, "-p", "0", stdin="a\nb\n")
    asked = [
        kcat(cluster, "-Q", "-t", f"{made}:0:{when}").split()[-1]
        for when in ("0", "4102444800000", "-1", "-2")
    ]
    assert asked == ["0", "-1", "2", "0"]


def test_json_envelopes_carry_the_timestamp(cluster: Broker, made: str) -> None:
    kcat(cluster, "-P", "-t", made, "-p", "0", stdin="a\n")
    envelope = json.loads(kcat(cluster, "-C", "-t", made, "-p", "0", "-o", "0", "-c", "1", "-J"))
    assert envelope["tstype"] == "create"
    assert envelope["ts"] > T0
    assert envelope["payload"] == "a"


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_goes_on_where_it_was(swift: Broker, topic: str, strategy: str) -> None:
    with Connection(swift.port) as connection:
        create_topic(connection, topic, partitions=3)

    def read() -> list[str]:
        settings = ["auto.offset.reset=earliest", f"partition.assignment.strategy={strategy}"]
        options = [part for text in settings for part in ("-X", text)]
        return sorted(kcat(swift, "-q", "-e", *options, "-G", topic, topic).split())

    kcat(swift, "-P", "-t", topic, "-p", "0", stdin="a\nb\n")
    kcat(swift, "-P", "-t", topic, "-p", "2", stdin="c\n")
    assert read() == ["a", "b", "c"]
    kcat(swift, "-P", "-t", topic, "-p", "1", stdin="d\n")
    assert read() == ["d"]
    assert read() == []
