"""Nodes side by side under one directory: who there is, on which ports, and what does not fit."""

import dataclasses
import json
import socket
from itertools import count
from pathlib import Path

import pytest

from scriba.cli.node.layout import (
    HOST,
    METRICS,
    Layout,
    check_ports,
    check_shared,
    counted_up,
    lay_out,
    load,
    metrics_of,
    plan,
    properties_file,
    save,
    settings_of,
    without_metrics,
)
from scriba.cli.problems import Misuse
from scriba.config import StartError
from scriba.settings import NodeSettings
from scriba.settings.sources import parse_properties

BOTH = ("broker", "controller")


def stored(data: Path, layout: Layout) -> Layout:
    save(str(data), layout, {p.id: settings_of(layout, p, str(data)) for p in layout.nodes})
    return layout


def test_ports_are_counted_up_brokers_first() -> None:
    layout = plan(3, 0, count(9092))
    assert [(p.id, p.roles, p.port, p.controller_port) for p in layout.nodes] == [
        (1, BOTH, 9092, 9095),
        (2, BOTH, 9093, 9096),
        (3, BOTH, 9094, 9097),
    ]
    assert layout.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_three_vote_or_one(brokers: int, voters: int) -> None:
    layout = plan(brokers, 0, count(9092))
    assert [place.id for place in layout.voters] == list(range(1, voters + 1))
    assert len(layout.brokers) == brokers


def test_controllers_of_their_own_leave_the_small_numbers_to_brokers() -> None:
    layout = plan(2, 3, count(9092))
    assert [(p.id, p.roles, p.port, p.controller_port) for p in layout.nodes] == [
        (1, ("broker",), 9092, None),
        (2, ("broker",), 9093, None),
        (101, ("controller",), None, 9094),
        (102, ("controller",), None, 9095),
        (103, ("controller",), None, 9096),
    ]


def test_a_node_takes_what_is_written_for_it(tmp_path: Path) -> None:
    layout = stored(tmp_path, plan(1, 0, count(9092)))
    text = Path(properties_file(str(tmp_path), 1)).read_text()
    given = {name: value.text for name, value in parse_properties(text, "file").items()}
    settings = NodeSettings.parse(given)
    assert settings.node_id == 1
    assert [str(each) for each in settings.endpoints] == [
        "PLAINTEXT://127.0.0.1:9092",
        "CONTROLLER://127.0.0.1:9093",
    ]
    assert settings.data_dirs == (str(tmp_path / "node-1"),)
    assert load(str(tmp_path)) == layout


def test_a_value_is_read_as_it_was_given(tmp_path: Path) -> None:
    odd = {"a": "  two spaces", "b": "back\\slash", "c": "two\nlines", "d": "#=:!", "e": ""}
    save(str(tmp_path), plan(1, 0, count(9092)), {1: odd})
    read = parse_properties(Path(properties_file(str(tmp_path), 1)).read_text(), "file")
    assert {name: value.text for name, value in read.items()} == odd


# ---- over a directory that was used ----


def test_without_a_number_there_are_as_many_as_before(tmp_path: Path) -> None:
    layout = stored(tmp_path, plan(3, 0, count(9200)))
    assert lay_out(str(tmp_path), None, None, None) == layout
    assert lay_out(str(tmp_path), 3, 0, None) == layout


def test_clients_ports_may_change_and_controllers_keep_theirs(tmp_path: Path) -> None:
    stored(tmp_path, plan(3, 0, count(9200)))
    moved = lay_out(str(tmp_path), 3, None, 9300)
    assert [(p.port, p.controller_port) for p in moved.nodes] == [
        (9300, 9203),
        (9301, 9204),
        (9302, 9205),
    ]
    assert [p.metrics_port for p in moved.nodes] == [9303, 9304, 9305]
    with pytest.raises(StartError, match="port 9203 would be that of node 1 and of node 2"):
        lay_out(str(tmp_path), 3, None, 9202)


@pytest.mark.parametrize(
    ("brokers", "controllers", "told"),
    [
        (2, None, r"--nodes 2: .* has 3 nodes, .*; start with --nodes 3"),
        (4, None, r"--nodes 4: .* has 3 nodes; start with --nodes 3, then add .*--join"),
        (3, 3, r"--controllers 3: .* has 0 dedicated controllers; drop --controllers"),
    ],
)
def test_other_numbers_than_the_directory_has_are_refused(
    tmp_path: Path, brokers: int, controllers: int | None, told: str
) -> None:
    stored(tmp_path, plan(3, 0, count(9200)))
    with pytest.raises(StartError, match=told):
        lay_out(str(tmp_path), brokers, controllers, None)


def test_the_data_of_a_single_node_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("node.id=1\n")
    with pytest.raises(StartError, match="holds the data of a single node"):
        lay_out(str(tmp_path), 3, None, None)


def test_data_without_its_layout_is_not_taken_for_new(tmp_path: Path) -> None:
    (tmp_path / "node-2").mkdir()
    with pytest.raises(StartError, match=r"has node-2 but no cluster\.json"):
        lay_out(str(tmp_path), 3, None, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "nodes": []}', '{"version": 1}'])
def test_a_damaged_layout_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(StartError, match=r"cluster\.json: cannot be read"):
        load(str(tmp_path))


def test_a_layout_without_brokers_is_damaged(tmp_path: Path) -> None:
    document = {"version": 1, "nodes": [{"id": 1, "roles": ["controller"], "controller_port": 1}]}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    with pytest.raises(StartError, match="no broker is in it"):
        load(str(tmp_path))


# ---- ports and settings ----


def test_a_port_that_is_taken_is_named_with_its_node() -> None:
    ports = counted_up(0)
    layout = plan(2, 0, ports)
    ports.close()  # type: ignore[attr-defined]
    check_ports(layout)
    with socket.socket() as other:
        other.bind((HOST, layout.nodes[1].port))
        other.listen()
        with pytest.raises(StartError, match=rf"127.0.0.1:{layout.nodes[1].port} for node 2"):
            check_ports(layout)


def test_there_are_only_so_many_ports() -> None:
    with pytest.raises(Misuse, match="--port 65534"):
        plan(3, 0, counted_up(65534))


def test_what_differs_from_node_to_node_cannot_be_given_for_all() -> None:
    check_shared([("num.partitions", "--set num.partitions")])
    with pytest.raises(Misuse, match=r"listeners is set \(--set listeners\)"):
        check_shared([("listeners", "--set listeners")])


def test_metrics_have_a_port_for_each_node() -> None:
    node = plan(1, 0, count(9092)).nodes[0]
    assert metrics_of({}, node, 0) == {METRICS: "http://127.0.0.1:9094"}
    shared = {METRICS: "http://127.0.0.1:9404"}
    assert metrics_of(shared, node, 2) == {METRICS: "http://127.0.0.1:9406"}
    for said in ("http://127.0.0.1:0", ""):
        assert metrics_of({METRICS: said}, node, 2) == {}
    assert metrics_of({}, dataclasses.replace(node, metrics_port=None), 0) == {}


def test_a_directory_without_ports_for_metrics_goes_without(tmp_path: Path) -> None:
    old = stored(tmp_path, without_metrics(plan(3, 0, count(9200))))
    assert lay_out(str(tmp_path), None, None, None) == old
    assert not any(each.metrics_port for each in lay_out(str(tmp_path), 3, None, 9300).nodes)
