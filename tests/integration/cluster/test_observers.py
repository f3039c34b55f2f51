"""Observers of nodes that are processes: what a person types, and a link that is down."""

import json
from collections.abc import Iterator

import pytest

from scriba.cli.main import main
from scriba.client import NewTopic, SyncAdmin, SyncProducer, TopicPartition
from scriba.settings.placement import PLACEMENT
from tests.integration.commands import Done
from tools.kafka.broker_fixtures import SWIFT, eventually
from tools.kafka.scriba_nodes import ScribaNodes, running_nodes

SETTINGS = {**SWIFT, "broker.rack": "zone-{node}"}
ASKED = "voters=1@zone-1,1@zone-2;observers=1@zone-3"
OBSERVER = 3
WHERE = TopicPartition("seen", 0)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScribaNodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), SETTINGS, linked=True) as made:
        yield made


def test_an_observer_is_placed_shown_and_promoted_as_it_is_typed(
    nodes: ScribaNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main([*words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    assert typed("topic", "create", "seen", "-c", f"{PLACEMENT}={ASKED}").code == 0
    assert nodes.links is not None
    for voter in (1, 2):
        nodes.links.cut(OBSERVER, voter)
    with SyncProducer(bootstrap_servers=nodes.bootstrap, acks="all") as producer:
        for _ in range(10):
            producer.send("seen", b"x", partition=0)
    [shown] = typed("topic", "describe", "seen", "--json").json
    [partition] = shown["partitions"]
    assert sorted(partition["isr"]) == [1, 2]
    assert [(each["broker"], each["lag"]) for each in partition["observers"]] == [(OBSERVER, 10)]
    assert "3 (-10)" in typed("topic", "describe", "seen").out
    assert typed("topic", "describe", "seen", "--under-replicated", "--json").json == []
    nodes.links.heal()
    eventually(
        lambda: (
            typed("topic", "describe", "seen", "--json").json[0]["partitions"][0]["observers"]
            == [{"broker": OBSERVER, "end_offset": 10, "lag": 0}]
        )
    )
    assert "seen needs another" in typed("cluster", "drain", "3").line.replace("seen-0", "seen")
    planned = typed("cluster", "promote", "zone-3", "--dry-run", "--json").json
    assert planned["placements"] == {"seen": "voters=1@zone-1,1@zone-2,1@zone-3"}
    assert planned["partitions"][0]["missing_from"] is None
    promoted = typed("cluster", "promote", "zone-3")
    assert promoted.code == 0
    assert "1 partition led by a voter: nothing is lost" in promoted.out
    eventually(lambda: {*_isr(nodes)} == {1, 2, 3})


def _isr(nodes: ScribaNodes) -> tuple[int, ...]:
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        return admin.describe_topics(["seen"])["seen"].partitions[0].isr


def test_what_a_placement_forbids_is_refused_in_one_line(
    nodes: ScribaNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main([*words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic("kept", 1, configs={PLACEMENT: ASKED})])
    first = typed("cluster", "reassign", "kept", "--to", "3,1,2")
    assert "kept-0 names observer 3 first" in first.line
    fewer = typed("cluster", "reassign", "kept", "--to", "1,2")
    assert "kept-0 puts 0 in rack zone-3" in fewer.line
    wrong = typed("topic", "create", "x", "-c", f"{PLACEMENT}=voters=1@zone-9")
    assert "names rack zone-9, where no broker is; they are in zone-1, zone-2, zone-3" in wrong.line
    nobody = typed("cluster", "promote", "zone-1")
    assert "no topic has observers in rack zone-1" in nobody.line


def test_a_placement_that_asks_for_more_than_a_rack_has_is_told_by_a_balance(
    nodes: ScribaNodes, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> Done:
        code = main([*words, "--bootstrap", nodes.bootstrap, "--timeout", "60"])
        return Done(code, *capsys.readouterr())

    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments={0: [1, 2]})])
    assert typed("config", "set", "--topic", topic, f"{PLACEMENT}=voters=2@zone-3").code == 0
    told = f"{topic} asks for 2 replicas in rack zone-3 ({PLACEMENT}), where 1 broker can take them"
    eventually(lambda: told in typed("cluster", "balance", "--dry-run").err)
    planned = typed("cluster", "balance", "--dry-run", "--json")
    assert json.loads(planned.out)["short"] == [
        {"topic": topic, "rack": "zone-3", "asked": 2, "brokers": 1, "partitions": 1}
    ]
    with SyncAdmin(bootstrap_servers=nodes.bootstrap) as admin:
        admin.delete_topics([topic])
