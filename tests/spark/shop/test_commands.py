"""Commands of the shop as processes, against a broker."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scriba.client import SyncConsumer
from scriba.pipelines.shop import topics as shop
from scriba.pipelines.shop.topics import Names
from tests.spark.desk import JAVA, Topics
from tests.typed import present

NAME = "must be text of 1 to 256 characters"
SCRIBA = [sys.executable, "-m", "scriba", "shop"]


def records(topics: Topics, topic: str) -> list[tuple[bytes | None, bytes, int]]:
    with SyncConsumer(
        bootstrap_servers=topics.broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        places = consumer.partitions(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found = []
        while any(consumer.position(place) < ends[place] for place in places):
            found += consumer.poll(100)
    return [(record.key, present(record.value), record.partition) for record in found]


def user_of(value: bytes) -> str | None:
    """Whom an event is of; None of one that the generator has damaged."""
    try:
        user: str | None = json.loads(value).get("user_id")
    except json.JSONDecodeError:
        return None
    return user


def test_what_is_generated_is_what_the_truth_says(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    truth = tmp_path / "truth.json"
    words = ["--backfill", "20m", "--duration", "1s", "--rate", "2", "--truth", str(truth)]
    where = ["--bootstrap", topics.broker.bootstrap, "--prefix", f"{topic}-"]
    done = subprocess.run(
        [*SCRIBA, "generate", *words, *where], capture_output=True, text=True, check=True
    )
    names = Names(f"{topic}-")
    values = [value for name in shop.INPUTS for _, value, _ in records(topics, names(name))]
    assert done.stdout == f"{len(values)} events sent\n"
    told = json.loads(truth.read_text())
    health = told["tables"][shop.HEALTH].values()
    assert sum(minute["events"] for minute in health) == len(values) > 0
    keyed = [(key, value) for key, value, _ in records(topics, names(shop.PURCHASE_COMPLETED))]
    named = [(key, buyer) for key, value in keyed if (buyer := user_of(value)) is not None]
    assert named
    assert all(buyer.encode() == key for key, buyer in named)
    assert len(keyed) - len(named) <= sum(minute["dead_letters"] for minute in health)


@pytest.mark.parametrize(
    ("shell", "number"),
    [("", signal.SIGINT), ("trap '' INT; ", signal.SIGTERM)],
    ids=["^C", "kill"],
)
def test_whoever_stops_the_generator_gets_the_truth_of_what_was_sent(
    topics: Topics, topic: str, tmp_path: Path, shell: str, number: int
) -> None:
    """By Ctrl-C, or by a signal where a shell has it ignore that."""
    truth = tmp_path / "truth.json"
    where = ["--bootstrap", topics.broker.bootstrap, "--prefix", f"{topic}-"]
    words = shlex.join([*SCRIBA, "generate", "--rate", "200", "--truth", str(truth), *where])
    names = Names(f"{topic}-")
    topics.create(names(shop.PRODUCT_VIEWED), 2)
    generator = subprocess.Popen(["sh", "-c", f"{shell}exec {words}"], stdout=subprocess.PIPE)
    try:
        while generator.poll() is None and not records(topics, names(shop.PRODUCT_VIEWED)):
            time.sleep(0.1)
        generator.send_signal(number)
        said = generator.communicate(timeout=300)[0].decode()
    finally:
        generator.kill()
        generator.wait()
    sent = sum(len(records(topics, names(name))) for name in shop.INPUTS)
    assert (generator.returncode, said) == (0, f"{sent} events sent\n")
    health = json.loads(truth.read_text())["tables"][shop.HEALTH].values()
    assert sum(minute["events"] for minute in health) == sent > 0


def test_queries_run_on_executors_that_are_processes_of_their_own(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    where = ["--bootstrap", topics.broker.bootstrap, "--prefix", f"{topic}-"]
    words = ["--backfill", "10m", "--duration", "1s", "--rate", "1"]
    made = subprocess.run(
        [*SCRIBA, "generate", *words, *where], capture_output=True, text=True, check=True
    )
    settings = {
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
        "spark.executor.memory": "512m",
    }
    spark = [word for name, value in settings.items() for word in ("--spark", f"{name}={value}")]
    place = ["--master", "local-cluster[1,2,512]", "--checkpoints", str(tmp_path / "checkpoints")]
    run = ["run", "--only", "intake", "--to-the-end", *place, *spark, *where]
    folder = tmp_path / "a folder for what is passing"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    subprocess.run([*SCRIBA, *run], stderr=subprocess.DEVNULL, check=True, env=environment)
    health = {key: json.loads(v) for key, v, _ in records(topics, f"{topic}-{shop.HEALTH}")}
    told = sum(minute["events"] for minute in health.values())
    assert made.stdout == f"{told} events sent\n"


@pytest.fixture
def endpoint(topics: Topics, topic: str, request: pytest.FixtureRequest) -> Iterator[str]:
    where = ["--bootstrap", topics.broker.bootstrap, "--prefix", f"{topic}-", "--port", "0"]
    words = getattr(request, "param", [])
    child = subprocess.Popen(
        [*SCRIBA, "collect", *where, *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline().rpartition(" ")[2].strip()
    finally:
        child.terminate()
        assert child.wait() == 0


def post(url: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers={"User-Agent": "Firefox"})
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def example(topic: str, **changes: Any) -> dict[str, Any]:
    return {"event": topic, **shop.CONTRACTS[topic].value, **changes}


def test_events_of_clients_are_written_under_their_user(
    topics: Topics, topic: str, endpoint: str
) -> None:
    plain = example(shop.PRODUCT_VIEWED, event_time="2026-01-01T00:00:00Z")
    del plain["user_agent"]
    assert post(endpoint, plain) == (202, {"taken": 1})
    buy = example(shop.PURCHASE_COMPLETED, event_time="2026-01-01T00:00:00Z")
    assert post(endpoint, [plain, buy]) == (202, {"taken": 2})
    views = records(topics, f"{topic}-{shop.PRODUCT_VIEWED}")
    assert [key for key, _, _ in views] == [b"u00042"] * 2
    del plain["event"]
    assert json.loads(views[0][1]) == {**plain, "user_agent": "Firefox"}
    assert len(records(topics, f"{topic}-{shop.PURCHASE_COMPLETED}")) == 1


def test_a_wrong_event_is_refused_with_all_that_came_with_it(
    topics: Topics, topic: str, endpoint: str
) -> None:
    good = example(shop.PRODUCT_VIEWED, event_time="2026-01-01T00:00:00Z")
    code, told = post(endpoint, [good, {**good, "product_id": ""}])
    problem = {"index": 1, "field": "product_id", "problem": NAME}
    assert (code, told["problems"]) == (422, [problem])
    assert post(endpoint, b"{")[0] == 400
    assert post(endpoint, [])[0] == 400
    assert records(topics, f"{topic}-{shop.PRODUCT_VIEWED}") == []
    with urllib.request.urlopen(endpoint.replace("/events", "/health")) as answer:
        assert json.load(answer) == {"status": "ok"}


@pytest.mark.parametrize("endpoint", [["--partition-by", "random", "--acks", "all"]], indirect=True)
def test_events_may_be_spread_without_regard_to_their_user(
    topics: Topics, topic: str, endpoint: str
) -> None:
    good = example(shop.PRODUCT_VIEWED, event_time="2026-01-01T00:00:00Z")
    assert post(endpoint, [good] * 500) == (202, {"taken": 500})
    found = records(topics, f"{topic}-{shop.PRODUCT_VIEWED}")
    assert {key for key, _, _ in found} == {None}
    assert len(found) == 500
