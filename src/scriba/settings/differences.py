"""Where a default is not Kafka's, with the reason.

All other defaults, of nodes, topics and clients, are those of Kafka 4.3: a test compares them with
what its jars declare.
"""

from typing import Final

_ALONE: Final = "a node starts without any setting, as a cluster of one on loopback"
_LIST: Final = "an unset list is an empty list, with no third state"

NODE: Final[dict[str, str]] = {
    "node.id": _ALONE,
    "process.roles": _ALONE,
    "listeners": _ALONE,
    "controller.listener.names": _ALONE,
    "listener.security.protocol.map": _ALONE,
    "log.dir": "a directory in the working directory, since `/tmp` is emptied by some systems",
    "log.dirs": _LIST,
    "advertised.listeners": _LIST,
}

CLIENT: Final[dict[str, str]] = {
    "bootstrap.servers": f"{_LIST}; a client without it is refused, as Kafka's is",
    "client.id": "brokers' logs and metrics then name the library of a client that has no name",
    "key.serializer": "bytes go through as they are; Kafka's clients have to be given one",
    "value.serializer": "bytes go through as they are; Kafka's clients have to be given one",
    "key.deserializer": "bytes go through as they are; Kafka's clients have to be given one",
    "value.deserializer": "bytes go through as they are; Kafka's clients have to be given one",
    "partition.assignment.strategy": "the same two, by their names in the protocol: there are no "
    "Java classes",
}

BEHAVIOUR: Final[dict[str, str]] = {
    "`default.replication.factor` is not set": "a topic for which no factor is asked gets as many "
    "replicas as there are brokers, three at most, instead of one: what nobody thought about "
    "should survive the loss of a broker",
    "`min.insync.replicas` is not set": "such a topic has it at 2 where it has three replicas: "
    "with 1, acks=all may be the word of a single broker",
    "`offsets.topic.replication.factor` and `transaction.state.log.replication.factor` "
    "with fewer brokers": "the internal topics are made with as many replicas as there are "
    "brokers, once three are registered or `initial.broker.registration.timeout.ms` has passed; "
    "Kafka refuses until there are three, which a single node never has",
    "`__consumer_offsets` with three replicas": "it has `min.insync.replicas` 2, as "
    "`__transaction_state` has in Kafka: a committed offset is an acknowledgement like any other",
    "A broker's connection ends and its address refuses": "it is fenced at once, not after "
    "`broker.session.timeout.ms`: a process that is gone does not come back by waiting",
    "A device that clients have filled": "metadata is still written, into 1 MiB that a file beside "
    "its log keeps (`scriba.metadata.reserve.bytes`); Kafka's log directory goes offline, and a "
    "controller ends",
    "Several brokers with one advertised host": "they are one machine, and replicas of a partition "
    "are on different ones where there are enough, after racks; Kafka knows racks only",
    "Levels of features on a new cluster": "`kraft.version` 1, so that voters can be changed; "
    "Kafka founds with 0 where it is given fixed voters",
}
"""What happens where nothing is set, if it is not what Kafka does."""
