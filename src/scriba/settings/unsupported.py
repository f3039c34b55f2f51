"""Kafka's other settings: without a meaning here, of features still to come, or gone.

People bring a `server.properties` that worked for Kafka. What it says is either carried out,
refused in one clear line, or, where no broker built like this one could make anything of it,
noted and left aside. `screen` sorts a given set of keys; the tables below hold Kafka 4.3's names
and defaults, as its own configuration classes report them.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from scriba.config import ConfigError, did_you_mean


class ScreenedSettings(NamedTuple):
    """`kept` are this product's own; `ignored` mean nothing here; `waiting` belong to a feature
    that is not served yet and have the value that one-node installations of Kafka need."""

    kept: Mapping[str, str]
    ignored: tuple[str, ...]
    waiting: tuple[str, ...]


def screen(
    given: Mapping[str, str], supported: Collection[str], *, at_start: bool = True
) -> ScreenedSettings:
    """Sorts what was given; ConfigError for a key that is neither supported nor may be left aside.

    At run time nothing is left aside: who alters a setting expects it to change something.
    """
    kept: dict[str, str] = {}
    ignored: list[str] = []
    waiting: list[str] = []
    for name, text in given.items():
        if name in supported:
            kept[name] = text
        elif not at_start:
            raise _no_such(name, supported)
        elif name in NOT_APPLICABLE or name in GONE or name.startswith("confluent."):
            ignored.append(name)
        elif ONE_NODE.get(name) == text.strip():
            waiting.append(name)
        elif not _same(LATER.get(name, ("", None))[1], text):
            raise _no_such(name, supported, text)
    return ScreenedSettings(kept, tuple(ignored), tuple(waiting))


def _same(default: str | None, text: str) -> bool:
    return default is not None and default.lower() == text.strip().lower()


def _no_such(name: str, supported: Collection[str], text: str | None = None) -> ConfigError:
    if name in NOT_APPLICABLE:
        return ConfigError(name, f"has no meaning here: {NOT_APPLICABLE[name]}")
    if name in ADVICE:
        return ConfigError(name, ADVICE[name])
    if name.startswith("zookeeper."):
        return ConfigError(name, ADVICE["zookeeper.connect"])
    if name in LATER:
        feature, default = LATER[name]
        hint = f" or leave it at {default}" if default and text is not None else ""
        return ConfigError(name, f"needs {feature} (not served yet); remove it{hint}")
    for prefix, feature in LATER_PREFIXES.items():
        if name.startswith(prefix):
            return ConfigError(name, f"needs {feature} (not served yet); remove it")
    return ConfigError(name, f"no such setting{did_you_mean(name, [*supported, *LATER])}")


def _names(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


def _defaults(features: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {
        name: (feature, default)
        for feature, lines in features.items()
        for name, _, default in (line.strip().partition("=") for line in lines.split("\n"))
        if name
    }


ADVICE: Final = {
    "zookeeper.connect": "there is no ZooKeeper here, nodes keep the metadata themselves; "
    "remove every zookeeper.* key",
    "host.name": "was dropped by Kafka; say listeners=PLAINTEXT://host:port",
    "port": "was dropped by Kafka; say listeners=PLAINTEXT://host:port",
    "advertised.host.name": "was dropped by Kafka; say advertised.listeners=PLAINTEXT://host:port",
    "advertised.port": "was dropped by Kafka; say advertised.listeners=PLAINTEXT://host:port",
    "log.message.timestamp.difference.max.ms": "was dropped by Kafka; say "
    "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms",
    "control.plane.listener.name": "was dropped by Kafka; say controller.listener.names",
}
"""Keys that need another word, not a value."""

GONE: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "metadata.migration.enable",
        "offsets.commit.required.acks",
        "reserved.broker.max.id",
    }
)
"""Keys of earlier Kafka that Kafka 4 no longer reads; old files still carry them."""

ONE_NODE: Final = {
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
}
"""What the files and images of a one-node Kafka say about features that are still to come."""

LATER_PREFIXES: Final = {
    "ssl.": "security",
    "sasl.": "security",
    "listener.name.": "settings of a single listener",
    "rsm.config.": "tiered storage",
    "rlmm.config.": "tiered storage",
}

NOT_APPLICABLE: Final = _names(
    {
        "work runs on one event loop, without thread pools": """
            background.threads group.coordinator.background.threads group.coordinator.threads
            num.io.threads num.network.threads
            num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
            num.replica.fetchers share.coordinator.threads
        """,
        "waiting requests sit in no purgatory that needs purging": """
            delete.records.purgatory.purge.interval.requests
            fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
            share.fetch.purgatory.purge.interval.requests
        """,
        "the kernel sizes socket buffers and the accept queue": """
            replica.socket.receive.buffer.bytes socket.listen.backlog.size
            socket.receive.buffer.bytes socket.send.buffer.bytes
        """,
        "requests are read when they can be served, so there is no queue of them": """
            queued.max.requests
        """,
        "metrics are plain counters, without JVM reporters and samples": """
            kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters
            metrics.num.samples metrics.recording.level metrics.sample.window.ms
        """,
        "the loop's own lag histogram tells what is slow": """
            controller.performance.always.log.threshold.ms
            controller.performance.sample.period.ms
        """,
        "a node listens once it is ready": """
            early.start.listeners server.max.startup.time.ms
        """,
        "what is decided is written at once, and what is under way shares a flush": """
            controller.quorum.append.linger.ms group.coordinator.append.linger.ms
        """,
        "a coordinator's records are built in memory of their own, kept for no later use": """
            group.coordinator.cached.buffer.max.bytes
        """,
        "background jobs first run after their interval": """
            log.initial.task.delay.ms
        """,
    }
)
"""Key to the reason why it cannot mean anything here."""

LATER: Final = _defaults(
    {
        "security": """
            authorizer.class.name=
            connection.failed.authentication.delay.ms=100
            connections.max.reauth.ms=0
            delegation.token.expiry.check.interval.ms=3600000
            delegation.token.expiry.time.ms=86400000
            delegation.token.max.lifetime.ms=604800000
            delegation.token.secret.key=
            principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
            sasl.client.callback.handler.class=
            sasl.enabled.mechanisms=GSSAPI
            sasl.jaas.config=
            sasl.kerberos.kinit.cmd=/usr/bin/kinit
            sasl.kerberos.min.time.before.relogin=60000
            sasl.kerberos.principal.to.local.rules=DEFAULT
            sasl.kerberos.service.name=
            sasl.kerberos.ticket.renew.jitter=0.05
            sasl.kerberos.ticket.renew.window.factor=0.8
            sasl.login.callback.handler.class=
            sasl.login.class=
            sasl.login.connect.timeout.ms=
            sasl.login.read.timeout.ms=
            sasl.login.refresh.buffer.seconds=300
            sasl.login.refresh.min.period.seconds=60
            sasl.login.refresh.window.factor=0.8
            sasl.login.refresh.window.jitter=0.05
            sasl.login.retry.backoff.max.ms=10000
            sasl.login.retry.backoff.ms=100
            sasl.mechanism.controller.protocol=GSSAPI
            sasl.mechanism.inter.broker.protocol=GSSAPI
            sasl.oauthbearer.assertion.algorithm=RS256
            sasl.oauthbearer.assertion.claim.aud=
            sasl.oauthbearer.assertion.claim.exp.seconds=300
            sasl.oauthbearer.assertion.claim.iss=
            sasl.oauthbearer.assertion.claim.jti.include=false
            sasl.oauthbearer.assertion.claim.nbf.seconds=60
            sasl.oauthbearer.assertion.claim.sub=
            sasl.oauthbearer.assertion.file=
            sasl.oauthbearer.assertion.private.key.file=
            sasl.oauthbearer.assertion.private.key.passphrase=
            sasl.oauthbearer.assertion.template.file=
            sasl.oauthbearer.client.credentials.client.id=
            sasl.oauthbearer.client.credentials.client.secret=
            sasl.oauthbearer.clock.skew.seconds=30
            sasl.oauthbearer.expected.audience=
            sasl.oauthbearer.expected.issuer=
            sasl.oauthbearer.jwks.endpoint.refresh.ms=3600000
            sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=10000
            sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=100
            sasl.oauthbearer.jwks.endpoint.url=
            sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
            sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
            sasl.oauthbearer.scope=
            sasl.oauthbearer.scope.claim.name=scope
            sasl.oauthbearer.sub.claim.name=sub
            sasl.oauthbearer.token.endpoint.url=
            sasl.server.callback.handler.class=
            sasl.server.max.receive.size=524288
            security.providers=
            ssl.allow.dn.changes=false
            ssl.allow.san.changes=false
            ssl.cipher.suites=
            ssl.client.auth=none
            ssl.enabled.protocols=TLSv1.2,TLSv1.3
            ssl.endpoint.identification.algorithm=https
            ssl.engine.factory.class=
            ssl.key.password=
            ssl.keymanager.algorithm=SunX509
            ssl.keystore.certificate.chain=
            ssl.keystore.key=
            ssl.keystore.location=
            ssl.keystore.password=
            ssl.keystore.type=JKS
            ssl.principal.mapping.rules=DEFAULT
            ssl.protocol=TLSv1.3
            ssl.provider=
            ssl.secure.random.implementation=
            ssl.trustmanager.algorithm=PKIX
            ssl.truststore.certificates=
            ssl.truststore.location=
            ssl.truststore.password=
            ssl.truststore.type=JKS
        """,
        "quotas": """
            alter.log.dirs.replication.quota.window.num=11
            alter.log.dirs.replication.quota.window.size.seconds=1
            client.quota.callback.class=
            controller.quota.window.num=11
            controller.quota.window.size.seconds=1
            max.connection.creation.rate=2147483647
            quota.window.num=11
            quota.window.size.seconds=1
            remote.log.manager.copy.quota.window.num=11
            remote.log.manager.copy.quota.window.size.seconds=1
            remote.log.manager.fetch.quota.window.num=11
            remote.log.manager.fetch.quota.window.size.seconds=1
            replication.quota.window.num=11
            replication.quota.window.size.seconds=1
        """,
        "tiered storage": """
            follower.fetch.last.tiered.offset.enable=false
            remote.fetch.max.wait.ms=500
            remote.list.offsets.request.timeout.ms=30000
            remote.log.index.file.cache.total.size.bytes=1073741824
            remote.log.index.file.cache.ttl.ms=900000
            remote.log.manager.copier.thread.pool.size=10
            remote.log.manager.copy.max.bytes.per.second=9223372036854775807
            remote.log.manager.expiration.thread.pool.size=10
            remote.log.manager.fetch.max.bytes.per.second=9223372036854775807
            remote.log.manager.follower.thread.pool.size=2
            remote.log.manager.task.interval.ms=30000
            remote.log.manager.task.retry.backoff.max.ms=30000
            remote.log.manager.task.retry.backoff.ms=500
            remote.log.manager.task.retry.jitter=0.2
            remote.log.manager.thread.pool.size=2
            remote.log.metadata.custom.metadata.max.bytes=128
            remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
            remote.log.metadata.manager.class.path=
            remote.log.metadata.manager.impl.prefix=rlmm.config.
            remote.log.metadata.manager.listener.name=
            remote.log.reader.max.pending.tasks=100
            remote.log.reader.threads=10
            remote.log.storage.manager.class.name=
            remote.log.storage.manager.class.path=
            remote.log.storage.manager.impl.prefix=rsm.config.
            remote.log.storage.system.enable=false
        """,
        "share groups": """
            group.share.assignment.interval.ms=1000
            group.share.assignors=simple
            group.share.delivery.count.limit=5
            group.share.heartbeat.interval.ms=5000
            group.share.initialize.retry.interval.ms=30000
            group.share.max.assignment.interval.ms=15000
            group.share.max.delivery.count.limit=10
            group.share.max.heartbeat.interval.ms=15000
            group.share.max.partition.max.record.locks=4000
            group.share.max.record.lock.duration.ms=60000
            group.share.max.session.timeout.ms=60000
            group.share.max.share.sessions=2000
            group.share.max.size=200
            group.share.min.assignment.interval.ms=0
            group.share.min.delivery.count.limit=2
            group.share.min.heartbeat.interval.ms=5000
            group.share.min.partition.max.record.locks=100
            group.share.min.record.lock.duration.ms=15000
            group.share.min.session.timeout.ms=45000
            group.share.partition.max.record.locks=2000
            group.share.persister.class.name=org.apache.kafka.server.share.persister.DefaultStatePersister
            group.share.record.lock.duration.ms=30000
            group.share.session.timeout.ms=45000
            share.coordinator.append.linger.ms=-1
            share.coordinator.cached.buffer.max.bytes=1048588
            share.coordinator.cold.partition.snapshot.interval.ms=300000
            share.coordinator.load.buffer.size=5242880
            share.coordinator.snapshot.update.records.per.snapshot=500
            share.coordinator.state.topic.compression.codec=0
            share.coordinator.state.topic.min.isr=2
            share.coordinator.state.topic.num.partitions=50
            share.coordinator.state.topic.prune.interval.ms=300000
            share.coordinator.state.topic.replication.factor=3
            share.coordinator.state.topic.segment.bytes=104857600
            share.coordinator.write.timeout.ms=5000
        """,
        "streams groups": """
            group.streams.assignment.interval.ms=1000
            group.streams.heartbeat.interval.ms=5000
            group.streams.initial.rebalance.delay.ms=3000
            group.streams.max.assignment.interval.ms=15000
            group.streams.max.heartbeat.interval.ms=15000
            group.streams.max.session.timeout.ms=60000
            group.streams.max.size=2147483647
            group.streams.max.standby.replicas=2
            group.streams.min.assignment.interval.ms=0
            group.streams.min.heartbeat.interval.ms=5000
            group.streams.min.session.timeout.ms=45000
            group.streams.num.standby.replicas=0
            group.streams.session.timeout.ms=45000
        """,
        "client telemetry": """
            telemetry.max.bytes=1048576
        """,
        "plug-ins written in Java": """
            alter.config.policy.class.name=
            config.providers=
            create.topic.policy.class.name=
        """,
        "unstable protocol versions": """
            unstable.api.versions.enable=false
            unstable.feature.versions.enable=false
        """,
    }
)
"""Key to the feature that it belongs to and Kafka's default, which is always accepted."""


def known_names() -> list[str]:
    """Every key of Kafka that `screen` has a word on."""
    return [*LATER, *NOT_APPLICABLE, *ADVICE, *GONE]
