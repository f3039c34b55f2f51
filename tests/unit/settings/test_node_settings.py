"""What a node makes of the settings it is given."""

import re

import pytest

from scriba.config import ConfigError, Source
from scriba.settings import Endpoint, NodeSettings

SHIPPED = {
    # What Kafka's own one-node server.properties sets.
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


def refusal(**given: str) -> str:
    """The one line a node answers with; keys are written with `_` for `.`."""
    with pytest.raises(ConfigError) as caught:
        NodeSettings.parse({key.replace("_", "."): text for key, text in given.items()})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_any_setting_a_node_serves_loopback_under_one_id() -> None:
    node = NodeSettings.parse({})
    assert node.node_id == 1
    assert node.data_dirs == ("scriba-data",)
    assert node.endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert node.advertised_endpoints == node.endpoints
    assert node.inter_broker_listener == "PLAINTEXT"


def test_kafkas_own_file_starts_once_the_open_bind_is_allowed() -> None:
    with pytest.raises(ConfigError, match=re.escape("scriba.allow.insecure.bind=true")):
        NodeSettings.parse(SHIPPED)
    node = NodeSettings.parse(SHIPPED | {"scriba.allow.insecure.bind": "true"})
    assert [str(e) for e in node.broker_endpoints] == ["PLAINTEXT://:9092"]
    assert [str(e) for e in node.advertised_endpoints] == ["PLAINTEXT://localhost:9092"]
    assert "num.network.threads" in node.screened.ignored
    assert "share.coordinator.state.topic.min.isr" in node.screened.waiting
    assert node.offsets_topic_replication_factor == 1


def test_shorter_units_win_over_longer_ones_wherever_they_are_set() -> None:
    node = NodeSettings.parse({"log.retention.hours": "2", "log.roll.hours": "3"})
    assert node.topic_defaults.retention_ms == 2 * 3_600_000
    assert node.topic_defaults.segment_ms == 3 * 3_600_000
    node = NodeSettings.parse({"log.retention.hours": "2", "log.retention.minutes": "5"})
    assert node.topic_defaults.retention_ms == 5 * 60_000
    assert node.with_dynamic({"log.retention.ms": "7"}, {}).topic_defaults.retention_ms == 7


def test_any_negative_retention_means_for_ever_and_none_is_refused() -> None:
    assert NodeSettings.parse({"log.retention.hours": "-1"}).topic_defaults.retention_ms == -1
    assert NodeSettings.parse({"log.retention.ms": "-7"}).topic_defaults.retention_ms == -1
    assert "log.retention.ms" in refusal(log_retention_minutes="0")


def test_this_brokers_word_beats_the_clusters_and_both_beat_the_file() -> None:
    node = NodeSettings.parse({"message.max.bytes": "1000"})
    node = node.with_dynamic({"message.max.bytes": "2000"}, {})
    assert node.message_max_bytes == 2000
    node = node.with_dynamic({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert node.message_max_bytes == 3000
    node = node.with_dynamic({}, {})
    assert node.message_max_bytes == 1000
    assert node.layer(Source.STATIC_BROKER_CONFIG) == {"message.max.bytes": "1000"}


def test_a_misspelt_key_names_its_nearest_match() -> None:
    assert refusal(log_segmnt_bytes="1") == (
        "log.segmnt.bytes: no such setting; did you mean log.segment.bytes?"
    )


def test_a_bad_value_says_what_would_be_good() -> None:
    assert refusal(num_partitions="0") == "num.partitions=0: must be at least 1"
    assert refusal(num_partitions="many") == "num.partitions=many: must be a whole number"
    assert refusal(num_partitions="3000000000").endswith("must be from -2147483648 to 2147483647")
    assert refusal(auto_create_topics_enable="yes").endswith("must be true or false")
    assert refusal(log_message_timestamp_type="now").endswith("one of CreateTime, LogAppendTime")
    assert refusal(compression_gzip_level="0").endswith("must be from 1 to 9, or -1")
    assert refusal(log_dirs="/a,,/b").endswith("has an empty item; remove the extra comma")


@pytest.mark.parametrize("key", ["offsets_topic", "transaction_state_log"])
def test_segments_that_no_topic_may_have_are_refused_for_internal_topics(key: str) -> None:
    """Their topic could not be made, and nobody would have a coordinator."""
    assert refusal(**{f"{key}_segment_bytes": "1048575"}) == (
        f"{key.replace('_', '.')}.segment.bytes=1048575: must be at least 1048576, as of any topic"
    )


def test_replicas_are_selected_by_rack_or_not_at_all() -> None:
    for name in ("RackAwareReplicaSelector", "LeaderSelector"):
        given = {"replica.selector.class": f"org.apache.kafka.common.replica.{name}"}
        assert NodeSettings.parse(given).replica_selector_class == given["replica.selector.class"]
    told = refusal(replica_selector_class="com.example.Nearest")
    assert "org.apache.kafka.common.replica.RackAwareReplicaSelector" in told
    assert told.endswith("selectors written in Java cannot be loaded")


def test_only_directories_of_its_own_can_be_cordoned() -> None:
    for text in ("/b", "*", "/a,/b"):
        given = {"log.dirs": "/a,/b", "cordoned.log.dirs": text}
        assert NodeSettings.parse(given).cordoned_log_dirs == tuple(text.split(","))
    told = refusal(log_dirs="/a,/b", cordoned_log_dirs="/c")
    assert told == "cordoned.log.dirs=/c: must name directories of log.dirs (/a, /b), or *"
    told = refusal(log_dirs="/a,/b", cordoned_log_dirs="*,/a")
    assert told == "cordoned.log.dirs=*,/a: * is all of them, and stands alone"


def test_zookeeper_is_refused_with_advice() -> None:
    assert "there is no ZooKeeper here" in refusal(zookeeper_connect="localhost:2181")
    assert "there is no ZooKeeper here" in refusal(zookeeper_session_timeout_ms="1")


def test_a_feature_to_come_is_named_unless_the_value_is_kafkas_default() -> None:
    assert "share groups (not served yet)" in refusal(group_share_max_size="5")
    assert "security (not served yet)" in refusal(ssl_keystore_location="/k")
    assert "tiered storage (not served yet)" in refusal(remote_log_storage_system_enable="true")
    given = {"group.share.max.size": "200", "remote.log.storage.system.enable": "False"}
    assert NodeSettings.parse(given).screened.ignored == ()


def test_compaction_is_taken_and_every_cleaner_gets_memory() -> None:
    node = NodeSettings.parse(
        {"log.cleanup.policy": "compact,delete", "log.cleaner.delete.retention.ms": "5"}
    )
    assert node.topic_defaults.cleanup_policy == ("compact", "delete")
    assert node.topic_defaults.delete_retention_ms == 5
    assert "log.cleaner.enable=false is for none" in refusal(log_cleaner_threads="0")
    assert "for each of log.cleaner.threads=128" in refusal(log_cleaner_threads="128")
    assert "above 0 and at most 1" in refusal(log_cleaner_io_buffer_load_factor="0")
    assert "above 0 and finite" in refusal(log_cleaner_io_max_bytes_per_second="-1")
    assert "above 0 and finite" in refusal(log_cleaner_io_max_bytes_per_second="nan")


CONTROLLER = {
    "listeners": "CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
}
BOTH = {**CONTROLLER, "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"process.roles": "broker"}, "a broker needs controllers; name some"),
        (
            {**BOTH, "process.roles": "broker", "controller.quorum.voters": "2@b:1"},
            "this node is a broker only; drop it",
        ),
        (
            {"process.roles": "broker", "controller.quorum.voters": "1@a:1,2@b:1"},
            "names this node (1), which is a broker only",
        ),
        ({"process.roles": "controller"}, "process.roles=controller needs one; set it to"),
        ({**BOTH, "process.roles": "controller"}, "process.roles=controller serves no clients"),
        ({"controller.quorum.voters": "1@a:1,2@b:1"}, "none that the other controllers could"),
        ({"controller.quorum.voters": "2@b:1,3@c:1"}, "does not name this controller; add 1@"),
        ({**BOTH, "controller.quorum.voters": "1@a:1,1@b:1"}, "is given twice"),
        ({**BOTH, "controller.quorum.voters": "1@a:1,2@a:1"}, "is given twice"),
        ({**BOTH, "controller.quorum.voters": "1@a:1,2@b:0"}, "port must be from 1 to 65535"),
        ({**BOTH, "controller.quorum.voters": "1@a:1,2@b:65536"}, "port must be from 1 to 65535"),
        ({**BOTH, "controller.quorum.bootstrap.servers": "nowhere"}, "must be host:port"),
        ({"process.roles": ""}, "must name broker, controller or both"),
    ],
)
def test_roles_listeners_and_controllers_must_go_together(
    given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        NodeSettings.parse({"node.id": "1", **given})
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_followers_patience_is_longer_than_its_leader_keeps_it_waiting() -> None:
    """Else each of its fetches fails while nobody writes, or it leaves the in-sync set for that."""
    waits = {"replica.fetch.wait.max.ms": "500"}
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        with pytest.raises(ConfigError, match="must be at least") as refused:
            NodeSettings.parse({**waits, name: "499"})
        assert refused.value.name == name
        assert "replica.fetch.wait.max.ms=500" in str(refused.value)
        NodeSettings.parse({**waits, name: "500"})


def test_a_node_that_names_itself_is_told_of_nobody_else() -> None:
    for given in (
        {"controller.quorum.voters": "4@localhost:9093"},
        {"controller.quorum.bootstrap.servers": "127.0.0.1:9093"},
    ):
        assert NodeSettings.parse({"node.id": "4", **BOTH, **given}).other_controllers == ()
    told = NodeSettings.parse(
        {
            "node.id": "4",
            **BOTH,
            "controller.quorum.voters": "4@localhost:9093,5@b:1",
            "controller.quorum.bootstrap.servers": "b:1,localhost:9093,c:2",
        }
    )
    assert told.other_controllers == (("b", 1), ("c", 2))


def test_the_older_name_of_the_node_id_still_counts() -> None:
    assert NodeSettings.parse({"broker.id": "7"}).node_id == 7
    assert "differs from node.id=3" in refusal(broker_id="7", node_id="3")


@pytest.mark.parametrize(
    ("listeners", "complaint"),
    [
        ("PLAINTEXT:/x", "must be NAME://host:port"),
        ("PLAINTEXT://localhost", "must be NAME://host:port"),
        ("PLAINTEXT://localhost:99999", "from 0 to 65535"),
        ("INSIDE://localhost:1", "add INSIDE:PLAINTEXT to listener.security.protocol.map"),
        ("SSL://localhost:1", "SSL is not served yet; use PLAINTEXT"),
        ("PLAINTEXT://localhost:1,plaintext://localhost:2", "used twice"),
        ("PLAINTEXT://10.0.0.1:1", "without authentication"),
        ("PLAINTEXT://[::]:1", "without authentication"),
        ("CONTROLLER://localhost:1", "has none for clients"),
    ],
)
def test_a_listener_that_cannot_be_served_is_refused(listeners: str, complaint: str) -> None:
    assert complaint in refusal(listeners=listeners)


def test_listeners_have_names_of_their_own_and_take_any_loopback_address() -> None:
    node = NodeSettings.parse(
        {
            "listeners": "INSIDE://[::1]:0, Outside://127.0.0.2:9094",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://box:19094,INSIDE://localhost:0",
            "inter.broker.listener.name": "INSIDE",
        }
    )
    assert [str(e) for e in node.endpoints] == ["INSIDE://[::1]:0", "OUTSIDE://127.0.0.2:9094"]
    assert [str(e) for e in node.advertised_endpoints] == [
        "OUTSIDE://box:19094",
        "INSIDE://localhost:0",
    ]


def test_what_clients_are_told_must_be_reachable_and_bound() -> None:
    assert "listeners has none of that name" in refusal(
        advertised_listeners="OTHER://h:1",
        listener_security_protocol_map="OTHER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    )
    assert "no client can connect to that" in refusal(
        listeners="PLAINTEXT://0.0.0.0:9092", scriba_allow_insecure_bind="true"
    )
    node = NodeSettings.parse(
        {"listeners": "PLAINTEXT://:9092", "scriba.allow.insecure.bind": "true"}, machine="box"
    )
    assert [str(e) for e in node.advertised_endpoints] == ["PLAINTEXT://box:9092"]


def test_other_nodes_are_told_the_advertised_address_of_a_controller() -> None:
    behind = {
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "scriba.allow.insecure.bind": "true",
    }
    node = NodeSettings.parse(behind, machine="box")
    assert [str(e) for e in node.advertised_controllers] == ["CONTROLLER://box:9093"]
    told = {
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://outside:19093",
        "controller.quorum.bootstrap.servers": "outside:19093,other:19093",
    }
    node = NodeSettings.parse({**behind, **told}, machine="box")
    assert [str(e) for e in node.advertised_controllers] == ["CONTROLLER://outside:19093"]
    assert [str(e) for e in node.advertised_endpoints] == ["PLAINTEXT://127.0.0.1:9092"]
    assert node.other_controllers == (("other", 19093),)


def test_the_listener_between_brokers_must_be_advertised() -> None:
    assert "not among the advertised" in refusal(inter_broker_listener_name="INSIDE")
    assert "drop one" in refusal(
        inter_broker_listener_name="PLAINTEXT", security_inter_broker_protocol="PLAINTEXT"
    )


def test_limits_per_address_are_read_and_checked() -> None:
    node = NodeSettings.parse({"max.connections.per.ip.overrides": "10.0.0.1:5, ::1:7"})
    assert node.connections_per_ip == {"10.0.0.1": 5, "::1": 7}
    assert "must be address:count" in refusal(max_connections_per_ip_overrides="10.0.0.1")
    assert "not looked up" in refusal(max_connections_per_ip_overrides="localhost:3")
    assert "shuts everyone out" in refusal(max_connections_per_ip="0")


@pytest.mark.parametrize(
    ("changes", "cluster", "complaint"),
    [
        ({"log.dirs": "/x"}, False, "is read at start only"),
        ({"num.io.threads": "9"}, True, "has no meaning here"),
        ({"ssl.keystore.location": "x"}, False, "security (not served yet)"),
        ({"message.max.bytes": "-1"}, True, "must be at least 0"),
        ({"scriba.balance.auto": "true"}, False, "for the whole cluster"),
        ({"scriba.balance.gone.ms": "1000"}, False, "for the whole cluster"),
        ({"mesage.max.bytes": "1"}, True, "did you mean message.max.bytes?"),
    ],
)
def test_a_running_node_takes_only_what_it_can_carry_out(
    changes: dict[str, str], cluster: bool, complaint: str
) -> None:
    NodeSettings.check_dynamic({"message.max.bytes": "5"}, cluster=cluster)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        NodeSettings.check_dynamic(changes, cluster=cluster)


def test_run_time_settings_that_a_node_does_not_take_are_left_aside_by_name() -> None:
    node = NodeSettings.parse({"node.id": "4"})
    cluster = {"num.io.threads": "9", "message.max.bytes": "2000", "log.retention.ms": "0"}
    own = {"message.max.bytes": "many", "node.id": "7", "max.connections": "9"}
    found = node.following(cluster, own)
    assert (found.message_max_bytes, found.max_connections, found.node_id) == (2000, 9, 4)
    assert found.left_aside == (
        "log.retention.ms",
        "message.max.bytes",
        "node.id",
        "num.io.threads",
    )
    assert found.following({}, {}).left_aside == ()
    with pytest.raises(ConfigError):
        node.with_dynamic(cluster, own)
