"""`scriba log retention`: a pause is seen, explained and ended from anywhere."""

from tests.integration.commands import Scriba
from tools.kafka.brokers import Broker

PAUSED_AT = "scriba.retention.paused.at.ms"


def test_a_pause_is_explained_and_ended_by_the_command_that_it_names(
    cluster: Broker, scriba: Scriba
) -> None:
    assert scriba("log", "retention", "status").text == "node 1: deletes by age\n"
    scriba("config", "set", "--broker", "1", f"{PAUSED_AT}=1000000000000")
    told = scriba("log", "retention", "status", "--node", "1").text
    assert "PAUSED" in told
    assert "2001-09-09" in told
    assert "scriba log retention resume --node 1" in told
    assert scriba("log", "retention", "status", "--json").json == [
        {"node": 1, "paused_at_ms": 1_000_000_000_000}
    ]
    assert scriba("log", "retention", "resume").text == "node 1: deletes by age again\n"
    assert scriba("log", "retention", "resume").text == "node 1: was not paused\n"
    assert scriba("log", "retention", "status").text == "node 1: deletes by age\n"


def test_a_node_that_is_not_there_is_named(cluster: Broker, scriba: Scriba) -> None:
    told = scriba("log", "retention", "status", "--node", "9").line
    assert told == "there is no node 9; the cluster has 1"
