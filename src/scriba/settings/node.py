"""A node's settings taken together: their layers, and what follows from them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from scriba.config import ConfigError, Scope, Source
from scriba.settings.balance_runs import NAME as BALANCE_RUN
from scriba.settings.foreign import taken
from scriba.settings.keys.node import NodeKeys, parse_overrides
from scriba.settings.listeners import (
    WILDCARDS,
    Endpoint,
    Voter,
    check_listeners,
    parse_addresses,
    parse_endpoints,
    parse_protocol_map,
    parse_voters,
)
from scriba.settings.topic import TopicSettings
from scriba.settings.unsupported import ScreenedSettings, screen

MS_PER: Final = {"minutes": 60_000, "hours": 3_600_000}
CONTROLLER_PORT: Final = 9093
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


ONLY_OF_THE_CLUSTER: Final = "is set at run time for the whole cluster, by its controller"
OF_THE_BALANCE: Final = frozenset({BALANCE_RUN, "scriba.balance.auto", "scriba.balance.gone.ms"})
"""Those of one broker would count while it is the active controller, and change with the next."""
ALL_DIRS: Final = "*"
"""In `cordoned.log.dirs`: every directory, those of later as well."""


class NodeSettings(NodeKeys):
    """What is in force on a node.

    Three layers of text lie over the defaults: what was given at start, what was set at run time
    for the whole cluster, and what was set at run time for this broker. `layers` keeps them, so
    that DescribeConfigs can say where a value comes from.
    """

    layers: ClassVar[Mapping[Source, Mapping[str, str]]] = {}
    screened: ClassVar[ScreenedSettings] = ScreenedSettings({}, (), ())
    machine: ClassVar[str] = "localhost"
    left_aside: ClassVar[tuple[str, ...]] = ()
    """Settings of the metadata that this release does not know, or does not take."""

    @classmethod
    def parse(cls, given: Mapping[str, str], machine: str = "localhost") -> Self:
        """Reads what was given at start. `machine` is its name, advertised for an empty host."""
        screened = screen(given, cls.table)
        static = {"node.id": screened.kept["broker.id"]} if "broker.id" in screened.kept else {}
        static |= screened.kept
        settings = cls._layered({Source.STATIC_BROKER_CONFIG: static}, screened, machine)
        settings.check_cordons(settings.cordoned_log_dirs)
        if settings.scriba_balance_run:
            raise ConfigError(BALANCE_RUN, ONLY_OF_THE_CLUSTER)
        return settings

    def check_cordons(self, named: Sequence[str]) -> None:
        """Asked by the broker itself: a controller is told of other brokers' directories, too."""
        if ALL_DIRS in named and len(named) > 1:
            raise ConfigError(
                "cordoned.log.dirs", "* is all of them, and stands alone", ",".join(named)
            )
        for path in named:
            if path != ALL_DIRS and path not in self.data_dirs:
                raise ConfigError(
                    "cordoned.log.dirs",
                    f"must name directories of log.dirs ({', '.join(self.data_dirs)}), or *",
                    path,
                )

    def with_dynamic(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> Self:
        """The same node under other run-time settings: those of the cluster and its own."""
        layers = {
            Source.DYNAMIC_BROKER_CONFIG: broker,
            Source.DYNAMIC_DEFAULT_BROKER_CONFIG: cluster,
            Source.STATIC_BROKER_CONFIG: self.layer(Source.STATIC_BROKER_CONFIG),
        }
        return self._layered(layers, self.screened, self.machine)

    def following(self, cluster: Mapping[str, str], broker: Mapping[str, str]) -> Self:
        """The same under what the metadata says, as far as a node can take that; `left_aside` names
        the rest."""
        table = self.table
        known, aside = list[Mapping[str, str]](), list[str]()
        for given in (cluster, broker):
            known.append({n: t for n, t in given.items() if n in table and not table[n].read_only})
            aside += [name for name in given if name not in known[-1]]
        for_all = taken(known[0], lambda some: self.with_dynamic(some, NOTHING))
        own = taken(known[1], lambda some: self.with_dynamic(for_all.kept, some))
        settings = self.with_dynamic(for_all.kept, own.kept)
        left = sorted({*aside, *for_all.left_aside, *own.left_aside})
        settings.__dict__.update(left_aside=tuple(left))
        return settings

    @classmethod
    def _layered(
        cls, layers: dict[Source, Mapping[str, str]], screened: ScreenedSettings, machine: str
    ) -> Self:
        texts: dict[str, str] = {}
        for source in sorted(layers, reverse=True):
            texts |= layers[source]
        settings = cls(**cls.parse_values(texts))
        settings.__dict__.update(layers=layers, screened=screened, machine=machine)
        settings.check()
        return settings

    @classmethod
    def check_dynamic(cls, changes: Mapping[str, str], *, cluster: bool) -> None:
        """Whether a running node takes `changes`, for itself or for the whole cluster."""
        for name, text in screen(changes, cls.table, at_start=False).kept.items():
            declaration = cls.table[name]
            if declaration.read_only:
                raise ConfigError(name, "is read at start only; set it there and restart")
            if cluster and declaration.scope is Scope.PER_BROKER:
                raise ConfigError(name, "is set per broker, not for the whole cluster")
            if not cluster and name in OF_THE_BALANCE:
                raise ConfigError(name, ONLY_OF_THE_CLUSTER)
            declaration.parse(text)

    def layer(self, source: Source) -> Mapping[str, str]:
        """What one source gave, as text."""
        return self.layers.get(source, NOTHING)

    def is_given(self, name: str) -> bool:
        """Whether somebody chose the value, at start or later."""
        return any(name in layer for layer in self.layers.values())

    @cached_property
    def topic_defaults(self) -> TopicSettings:
        """The settings of a topic that sets nothing itself."""
        values: dict[str, Any] = {}
        for declaration in TopicSettings.table.values():
            for name in declaration.synonyms:
                value = self.value(name)
                if value is not None:
                    unit = name.rpartition(".")[2]
                    values[declaration.attribute] = (
                        value * MS_PER[unit] if unit in MS_PER else value
                    )
                    break
        values["retention_ms"] = max(values["retention_ms"], -1)
        return TopicSettings(**values)

    @cached_property
    def data_dirs(self) -> tuple[str, ...]:
        return self.log_dirs or self.log_dir

    @cached_property
    def metadata_dir(self) -> str:
        """Where the log of the cluster's metadata lies."""
        wanted = self.metadata_log_dir or self.data_dirs[0]
        return next((d for d in self.data_dirs if d.rstrip("/") == wanted.rstrip("/")), wanted)

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Every listener to bind."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return parse_endpoints("listeners", self.listeners, protocols)

    @cached_property
    def controller_names(self) -> tuple[str, ...]:
        return tuple(name.upper() for name in self.controller_listener_names)

    @cached_property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @cached_property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @cached_property
    def controller_endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners that serve the controller."""
        return tuple(e for e in self.endpoints if e.name in self.controller_names)

    @cached_property
    def quorum_voters(self) -> tuple[Voter, ...]:
        return parse_voters(self.controller_quorum_voters)

    @cached_property
    def other_controllers(self) -> tuple[tuple[str, int], ...]:
        """Addresses of the controllers that this node was told of, itself apart."""
        told = [(v.host, v.port) for v in self.quorum_voters if v.node_id != self.node_id]
        key = "controller.quorum.bootstrap.servers"
        told += parse_addresses(key, self.controller_quorum_bootstrap_servers)
        return tuple(dict.fromkeys(address for address in told if not self._is_own(*address)))

    def _is_own(self, host: str, port: int) -> bool:
        """Whether an address is this node's own controller."""
        named = Endpoint("", host, port, "")
        return self.is_controller and any(
            port == own.port
            and (host in (own.host, self.machine) or (own.is_loopback and named.is_loopback))
            for own in (*self.controller_endpoints, *self.advertised_controllers)
        )

    @cached_property
    def broker_endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners that serve clients and other brokers."""
        return tuple(e for e in self.endpoints if e.name not in self.controller_names)

    @cached_property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """What clients are told; port 0 stands for the port that was bound."""
        if not self.advertised_listeners:
            return tuple(e._replace(host=e.host or self.machine) for e in self.broker_endpoints)
        return tuple(e for e in self._advertised if e.name not in self.controller_names)

    @cached_property
    def advertised_controllers(self) -> tuple[Endpoint, ...]:
        """What other nodes are told of this one's controller; port 0 as above."""
        told = {e.name: e for e in self._advertised}
        found = (told.get(e.name, e) for e in self.controller_endpoints)
        return tuple(e._replace(host=self.machine) if e.host in WILDCARDS else e for e in found)

    @cached_property
    def _advertised(self) -> tuple[Endpoint, ...]:
        """All that `advertised.listeners` names."""
        if not self.advertised_listeners:
            return ()
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        told = parse_endpoints("advertised.listeners", self.advertised_listeners, protocols)
        return tuple(e._replace(host=e.host or self.machine) for e in told)

    @cached_property
    def inter_broker_listener(self) -> str:
        """Name of the listener on which brokers reach each other."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        wanted = self.security_inter_broker_protocol
        return next((e.name for e in self.broker_endpoints if e.protocol == wanted), wanted)

    @cached_property
    def connections_per_ip(self) -> Mapping[str, int]:
        """The exceptions from `max.connections.per.ip`."""
        return parse_overrides(self.max_connections_per_ip_overrides)

    def check(self) -> None:
        """Everything that no single value can tell. ConfigError at the first contradiction."""
        if self.broker_id not in (-1, self.node_id):
            raise self._refuse("broker.id", f"differs from node.id={self.node_id}; drop it")
        if not self.process_roles:
            raise ConfigError("process.roles", "must name broker, controller or both")
        self._check_quorum()
        self._check_followers()
        if self.topic_defaults.retention_ms == 0:
            raise ConfigError("log.retention.ms", "must be -1 (for ever) or at least 1 ms")
        if not self.data_dirs:
            raise self._refuse("log.dirs", "must name a directory")
        if self.max_connections_per_ip == 0 and not self.connections_per_ip:
            raise self._refuse("max.connections.per.ip", "shuts everyone out; raise it")
        if self.queued_max_request_bytes != -1 and (
            self.queued_max_request_bytes < self.socket_request_max_bytes
        ):
            raise self._refuse(
                "queued.max.request.bytes",
                "must be -1, or hold a request of socket.request.max.bytes="
                f"{self.socket_request_max_bytes}",
            )
        static = self.layer(Source.STATIC_BROKER_CONFIG)
        if "inter.broker.listener.name" in static and "security.inter.broker.protocol" in static:
            raise self._refuse(
                "security.inter.broker.protocol", "inter.broker.listener.name is set too; drop one"
            )
        for name in ("scriba.retention.paused.at.ms", "scriba.retention.paused.for.ms"):
            if name in static:
                raise self._refuse(name, "is set while a node runs; drop it here")
        check_listeners(self)
        self.check_groups()
        self.check_cleaner()
        self.check_metrics(self.scriba_allow_insecure_bind)

    def _check_followers(self) -> None:
        """Whether a fetch that its leader keeps waiting is taken for a dead leader, or for lag."""
        waits_ms = self.replica_fetch_wait_max_ms
        for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
            if self.value(name) < waits_ms:
                raise self._refuse(
                    name,
                    f"must be at least replica.fetch.wait.max.ms={waits_ms}, for which a leader "
                    "keeps a fetch waiting",
                )

    def _check_quorum(self) -> None:
        """Whether the roles of this node, its listeners and the quorum go together."""
        ids = [voter.node_id for voter in self.quorum_voters]
        example = f"CONTROLLER://127.0.0.1:{CONTROLLER_PORT}"
        if self.is_controller:
            if ids and self.node_id not in ids:
                raise self._refuse(
                    "controller.quorum.voters",
                    f"does not name this controller; add {self.node_id}@host:port, or set "
                    "process.roles=broker",
                )
            if self.other_controllers and not self.controller_endpoints:
                raise ConfigError(
                    "listeners",
                    f"has none that the other controllers could reach; add {example}, and "
                    "controller.listener.names=CONTROLLER",
                )
            if not self.is_broker and not self.controller_endpoints:
                raise ConfigError(
                    "listeners",
                    f"process.roles=controller needs one; set it to {example}, and "
                    "controller.listener.names=CONTROLLER",
                )
            return
        if self.node_id in ids:
            raise self._refuse(
                "controller.quorum.voters",
                f"names this node ({self.node_id}), which is a broker only; drop it there, or set "
                "process.roles=broker,controller",
            )
        if self.controller_quorum_auto_join_enable:
            raise self._refuse(
                "controller.quorum.auto.join.enable",
                "is for controllers, and this node is a broker only; drop it, or set "
                "process.roles=broker,controller",
            )
        if self.controller_endpoints:
            raise self._refuse(
                "listeners",
                "has one for the controller, and this node is a broker only; drop it, or set "
                "process.roles=broker,controller",
            )
        if not self.other_controllers:
            raise ConfigError(
                "controller.quorum.bootstrap.servers",
                "a broker needs controllers; name some, as host:port",
            )

    def _refuse(self, name: str, complaint: str) -> ConfigError:
        return ConfigError(name, complaint, self.table[name].render(self.value(name)))
