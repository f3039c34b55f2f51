"""A broker of `scriba.testing`: in a moment there, alone, and gone without a trace."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import scriba.testing
from scriba.config import ConfigError, StartError
from scriba.errors import KafkaError
from scriba.runtime.loop import hosting
from scriba.testing import Broker, Group, Record
from tools.kafka.broker_fixtures import eventually
from tools.kafka.rawkafka import Connection

API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 0000")


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def write(broker: Broker, topic: str, *texts: str, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for text in texts:
        producer.produce(topic, text)
    assert producer.flush(60) == 0


def test_a_program_writes_and_the_test_reads(broker: Broker) -> None:
    broker.create_topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"one", key=b"k", partition=1, headers={"h": b"x"})
    assert producer.flush(60) == 0
    (record,) = broker.records("orders")
    assert (record.topic, record.partition, record.offset) == ("orders", 1, 0)
    assert (record.key, record.value, record.headers) == (b"k", b"one", (("h", b"x"),))
    assert broker.records("orders", 0) == []
    assert broker.topics() == ["orders"]


def test_a_test_writes_and_a_program_reads(broker: Broker) -> None:
    told = broker.produce("orders", "one", key="k", headers={"h": "x"}, timestamp=1000)
    assert told == Record("orders", 0, 0, b"k", b"one", (("h", b"x"),), 1000)
    assert broker.records("orders") == [told]
    broker.produce("orders", None, key="k")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    first, second = consumer.consume(2, timeout=300)
    assert (first.value(), second.value()) == (b"one", None)
    (group,) = broker.groups()
    assert (group.id, group.state, group.protocol) == ("readers", "Stable", "classic")
    assert len(group.members) == 1
    assert broker.committed("readers") == {}
    consumer.commit(message=first, asynchronous=False)
    assert broker.committed("readers") == {("orders", 0): 1}
    consumer.close()
    assert broker.groups() == [Group("readers", "Empty", "classic", ())]
    assert broker.committed("nobody") == {}


def test_records_without_a_topic_are_an_error(local: Broker) -> None:
    with pytest.raises(KafkaError, match="there is no topic orders"):
        local.records("orders")


def test_open_and_aborted_transactions_are_seen_on_request(local: Broker) -> None:
    producer = Producer({"bootstrap.servers": local.bootstrap_servers, "transactional.id": "books"})
    producer.init_transactions(60)
    for text, end in (("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "")):
        producer.begin_transaction()
        producer.produce("ledger", text)
        assert producer.flush(60) == 0
        if end:
            getattr(producer, f"{end}_transaction")(60)
    assert values(local, "ledger") == [b"a", b"c"]
    everything = local.records("ledger", uncommitted=True)
    assert [record.value for record in everything] == [b"a", b"b", b"c", b"d"]
    (transaction,) = local.transactions()
    assert (transaction.id, transaction.state) == ("books", "Ongoing")
    producer.abort_transaction(60)


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
async def test_in_a_coroutine(process: bool) -> None:
    async with scriba.testing.broker(process=process) as broker:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"one")
        assert values(broker, "orders") == [b"one"]
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        )
        async with consumer:
            assert (await consumer.getone()).value == b"one"
            await consumer.commit()
        assert broker.committed("g") == {("orders", 0): 1}


LOOPS = {
    "asyncio": "asyncio.new_event_loop",
    "uvloop": "__import__('uvloop').new_event_loop",
}


@pytest.mark.parametrize("name", LOOPS)
def test_where_a_loop_runs_already(name: str) -> None:
    """As in a notebook: a plain `with` inside a coroutine, whatever the loop is."""
    program = f"""
import asyncio, scriba.testing
from aiokafka import AIOKafkaProducer

async def cell():
    with scriba.testing.broker() as broker:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"v")
        broker.clock.advance(60)
        return [record.value for record in broker.records("t")]

with asyncio.Runner(loop_factory={LOOPS[name]}) as runner:
    assert runner.run(cell()) == [b"v"]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=300)


def test_several_at_once_are_strangers() -> None:
    with (
        scriba.testing.broker() as one,
        scriba.testing.broker(num_partitions=3) as two,
        scriba.testing.broker(process=True) as three,
    ):
        brokers = (one, two, three)
        assert len({each.bootstrap_servers for each in brokers}) == 3
        assert len({each.data for each in brokers}) == 3
        for number, each in enumerate(brokers):
            write(each, "t", str(number))
        assert [values(each, "t") for each in brokers] == [[b"0"], [b"1"], [b"2"]]
        two.clock.advance(hours=1)
        assert two.clock.time() - one.clock.time() > 3500


# ---- settings ----


def test_settings_have_kafkas_names(broker: Broker) -> None:
    with scriba.testing.broker(
        {"num.partitions": 2}, auto_create_topics_enable=False, log_retention_ms=5000
    ) as other:
        admin = AdminClient({"bootstrap.servers": other.bootstrap_servers})
        other.create_topic("t", partitions=-1)
        assert len(admin.list_topics("t", timeout=300).topics["t"].partitions) == 2
        other.create_topic("c", cleanup_policy=["compact", "delete"], settings={"segment.ms": 1000})
        with pytest.raises(KafkaError, match="retention"):
            other.create_topic("d", retention_mss=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_partition": 2}, r"num\.partition: no such setting; did you mean num\.partitions\?"),
        ({"num_partitions": "many"}, r"num\.partitions=many"),
        ({"log_dirs": "/tmp"}, r"data="),
        ({"settings": {"num.partitions": 1}, "num_partitions": 2}, "given twice"),
        ({"zookeeper_connect": "x"}, r"zookeeper\.connect"),
    ],
)
def test_settings_that_are_wrong_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        scriba.testing.broker(**given)


def test_data_that_is_given_a_place_stays(tmp_path: Path) -> None:
    data = str(tmp_path / "kept")
    for expected in ([], [b"one"]):
        with scriba.testing.broker(data=data) as broker:
            assert broker.data == data
            if not expected:
                broker.produce("t", "one")
            else:
                assert values(broker, "t") == expected
    with (
        scriba.testing.broker(data=data),
        pytest.raises(StartError, match="in use by another running node"),
    ):
        scriba.testing.broker(data=data).start()


# ---- stop, kill, pause ----


@pytest.mark.parametrize("kill", [False, True])
def test_who_waits_for_records_waits_through_a_restart(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    turns = threading.Semaphore(0)

    def until(seconds: float) -> Iterator[None]:
        for turn in hosting.until(seconds):
            turns.release()
            yield turn

    def two_turns_more() -> None:
        while turns.acquire(blocking=False):
            pass
        assert all(waiting.done() or turns.acquire(timeout=60) for _ in range(2))

    monkeypatch.setattr("scriba.testing.embedded.until", until)
    broker.produce("orders", "one")
    with ThreadPoolExecutor() as thread:
        waiting = thread.submit(broker.records, "orders", at_least=2, timeout=300)
        two_turns_more()
        broker.stop(kill)
        two_turns_more()
        broker.start()
        broker.produce("orders", "two")
        assert [record.value for record in waiting.result()] == [b"one", b"two"]


@pytest.mark.parametrize("kill", [False, True], ids=["clean", "killed"])
def test_a_restart_keeps_what_was_acknowledged(broker: Broker, kill: bool) -> None:
    address, pid = broker.bootstrap_servers, broker.pid
    write(broker, "t", "one", "two")
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    broker.restart(kill=kill)
    assert broker.bootstrap_servers == address
    assert (broker.pid is None) == (pid is None)
    assert pid is None or broker.pid != pid
    assert values(broker, "t") == [b"one", b"two"]
    assert broker.committed("g") == {("t", 0): 1}
    consumer.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
    assert broker.committed("g") == {("t", 0): 2}
    consumer.close()


def test_a_kill_is_no_clean_end(broker: Broker) -> None:
    mark = Path(broker.data) / ".kafka_cleanshutdown"
    broker.stop()
    assert mark.exists()
    broker.start()
    assert not mark.exists()
    broker.stop(kill=True)
    assert not mark.exists()
    broker.start()


def test_an_outage_is_over_with_the_next_start(broker: Broker) -> None:
    write(broker, "t", "one")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "reconnect.backoff.max.ms": 100}
    )
    producer.list_topics(timeout=300)
    broker.stop(kill=True)
    assert not broker.running
    producer.produce("t", b"two")
    assert producer.flush(0.3) == 1
    with pytest.raises(RuntimeError, match="does not run"):
        broker.topics()
    broker.start()
    assert producer.flush(60) == 0
    assert values(broker, "t") == [b"one", b"two"]


def test_a_paused_broker_is_connected_and_silent(broker: Broker) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with Connection(port) as connection:
        connection.send(API_VERSIONS)
        assert connection.receive()
        broker.pause()
        broker.pause()
        connection.send(API_VERSIONS)
        connection.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.socket.recv(1)
        with pytest.raises(RuntimeError, match=r"resume\(\) it first"):
            broker.topics()
        broker.resume()
        broker.resume()
        connection.socket.settimeout(60)
        assert connection.receive()


def test_a_paused_broker_can_be_stopped_and_killed(broker: Broker) -> None:
    for kill in (False, True):
        broker.pause()
        broker.restart(kill=kill)
        assert broker.topics() == []


def test_a_process_ends_when_the_test_is_killed(tmp_path: Path) -> None:
    program = (
        "import scriba.testing, time\n"
        "with scriba.testing.broker(process=True) as broker:\n"
        "    print(broker.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    places = os.environ | {"TMPDIR": str(tmp_path)}  # nobody is left to remove the data
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=places) as test:
        assert test.stdout is not None
        pid = int(test.stdout.readline())
        os.kill(pid, 0)
        test.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_process_that_dies_is_told() -> None:
    with scriba.testing.broker(process=True) as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="ended with status -9"):
            broker.topics()
        broker.restart(kill=True)
        assert broker.topics() == []


# ---- reset ----


def test_after_a_reset_nothing_is_left(broker: Broker) -> None:
    write(broker, "a", "one")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "books"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("b", b"two")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("a", 0, 1)], asynchronous=False)
    broker.fail_next("CreateTopics", "NOT_CONTROLLER", times=100)
    assert broker.topics() == ["a", "b"]
    assert broker.groups()
    assert broker.transactions()
    broker.reset()
    assert broker.topics() == []
    assert broker.groups() == []
    assert broker.transactions() == []
    assert broker.committed("g") == {}
    write(broker, "a", "three")
    assert values(broker, "a") == [b"three"]
    consumer.commit(offsets=[TopicPartition("a", 0, 1)], asynchronous=False)
    assert broker.committed("g") == {("a", 0): 1}
    consumer.close()
    broker.reset()
    broker.reset()


def test_a_reset_takes_back_settings_of_the_running_broker(local: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": local.bootstrap_servers})
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    change = ConfigEntry("log.retention.ms", "77777", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("broker", "1", incremental_configs=[change])
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(300)

    def retention() -> str:
        asked = ConfigResource("broker", "1")
        return str(admin.describe_configs([asked])[asked].result(300)["log.retention.ms"].value)

    assert retention() == "77777"
    local.reset()
    assert retention() != "77777"


# ---- nothing is left behind ----


def open_files() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("kill", [False, True], ids=["clean", "killed"])
def test_nothing_is_left_behind(process: bool, kill: bool) -> None:
    def use() -> str:
        with scriba.testing.broker(process=process) as broker:
            for number in range(20):
                broker.produce(f"t{number}", "v")
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.list_topics(timeout=300)
            broker.clock.advance(hours=1)
            broker.restart(kill=kill)
            broker.reset()
            if kill:
                broker.stop(kill=True)
            return broker.data

    use()  # what is loaded once stays
    gc.collect()
    files, threads = open_files(), set(threading.enumerate())
    data = use()
    assert not os.path.exists(data)
    assert set(threading.enumerate()) - threads == set()
    eventually(lambda: len(open_files()) <= len(files))


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_start_that_fails_leaves_nothing(process: bool, local: Broker) -> None:
    port = local.bootstrap_servers.rpartition(":")[2]
    threads = set(threading.enumerate())
    taken = scriba.testing.broker(listeners=f"PLAINTEXT://127.0.0.1:{port}", process=process)
    with pytest.raises(StartError, match="cannot listen"), taken:
        pass
    assert set(threading.enumerate()) - threads == set()
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = taken.data


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    broker = scriba.testing.broker()
    entering = asyncio.ensure_future(broker.__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not broker.running
    assert set(threading.enumerate()) - threads == set()


def test_no_warning_is_given_by_a_whole_life() -> None:
    program = (
        "import gc, scriba.testing\n"
        "with scriba.testing.broker() as broker:\n"
        "    broker.produce('t', 'v')\n"
        "    broker.restart(kill=True)\n"
        "    broker.clock.advance(days=1)\n"
        "    broker.create_topic('c', cleanup_policy='compact', segment_ms=60_000)\n"
        "    for text in ('one', 'two'):\n"
        "        broker.produce('c', text, key='k')\n"
        "        broker.clock.advance(minutes=10)\n"
        "        broker.produce('c', text, key='j')\n"
        "    broker.clock.advance(minutes=10)\n"
        "    assert len(broker.records('c')) < 4, 'nothing was compacted'\n"
        "gc.collect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told = [line for line in done.stderr.splitlines() if " took " not in line]
    assert (done.stdout, told) == ("", [])


STARTING = """
import gc, sys
import scriba.testing


class Watch:
    def find_spec(name, path, target=None):
        if name == "scriba.broker.node":
            print("collects:", gc.isenabled())


sys.meta_path.insert(0, Watch)
with scriba.testing.broker() as broker:
    print("collects:", gc.isenabled())
    print("client:", *(name for name in sys.modules if name.startswith("scriba.client")))
    broker.produce("t", b"x", key=b"k")
    print([record.value for record in broker.records("t")])
"""


def test_a_start_loads_no_client_and_collects_nothing_while_it_loads_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, text=True)
    assert done.stderr == ""
    told = ["collects: False", "collects: True", "client:", "[b'x']"]
    assert done.stdout.splitlines() == told
