"""Listener addresses: the text of Kafka's listener settings turned into endpoints."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from scriba.config import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED_PROTOCOLS: Final = ("PLAINTEXT",)
WILDCARDS: Final = ("", "0.0.0.0", "::")  # an address is named here, none is bound

_ENDPOINT: Final = re.compile(
    r"(?P<name>[^:/]+)://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>-?[0-9]+)"
)
_HOST_PORT: Final = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]+)")


def is_loopback(host: str) -> bool:
    """Whether this is the machine itself, to itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Endpoint(NamedTuple):
    """One listener. `name` is what Kafka calls the listener name; port 0 means any free port."""

    name: str
    host: str
    port: int
    protocol: str

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Voter(NamedTuple):
    """One entry of controller.quorum.voters."""

    node_id: int
    host: str
    port: int


def parse_protocol_map(text: str) -> dict[str, str]:
    """`listener.security.protocol.map`: listener name to security protocol."""
    mapping: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not name or not protocol:
            raise _wrong("listener.security.protocol.map", item, "must be NAME:PROTOCOL")
        if protocol not in PROTOCOLS:
            raise _wrong(
                "listener.security.protocol.map",
                item,
                f"protocol must be one of {', '.join(PROTOCOLS)}",
            )
        if mapping.setdefault(name, protocol) != protocol:
            raise _wrong("listener.security.protocol.map", item, f"{name} is mapped twice")
    return mapping


def parse_endpoints(
    key: str, items: Sequence[str], protocols: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """The endpoints of `listeners` or `advertised.listeners`; names must be unique."""
    endpoints: list[Endpoint] = []
    for item in items:
        match = _ENDPOINT.fullmatch(item)
        if not match:
            raise _wrong(key, item, "must be NAME://host:port")
        name = match["name"].upper()
        port = int(match["port"])
        if not 0 <= port <= 65535:
            raise _wrong(key, item, "the port must be from 0 to 65535")
        protocol = protocols.get(name)
        if protocol is None:
            raise _wrong(key, item, f"add {name}:PLAINTEXT to listener.security.protocol.map")
        if any(name == other.name for other in endpoints):
            raise _wrong(key, item, f"listener name {name} is used twice")
        host = match["v6"] if match["v6"] is not None else match["host"]
        endpoints.append(Endpoint(name, host, port, protocol))
    return tuple(endpoints)


def parse_addresses(key: str, items: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Addresses of servers: host:port."""
    addresses: list[tuple[str, int]] = []
    for item in items:
        match = _HOST_PORT.fullmatch(item)
        if not match or not 0 < int(match["port"]) < 65536:
            raise _wrong(key, item, "must be host:port")
        addresses.append((match["v6"] or match["host"], int(match["port"])))
    return tuple(addresses)


def parse_voters(items: Sequence[str]) -> tuple[Voter, ...]:
    """`controller.quorum.voters`: id@host:port."""
    voters: list[Voter] = []
    for item in items:
        number, at, address = item.partition("@")
        match = _HOST_PORT.fullmatch(address)
        if not at or not number.isascii() or not number.isdigit() or not match:
            raise _wrong("controller.quorum.voters", item, "must be id@host:port")
        if not 0 < int(match["port"]) < 65536:
            raise _wrong("controller.quorum.voters", item, "the port must be from 1 to 65535")
        voter = Voter(int(number), match["v6"] or match["host"], int(match["port"]))
        for other in voters:
            if other.node_id == voter.node_id or other[1:] == voter[1:]:
                raise _wrong("controller.quorum.voters", item, "is given twice; drop one")
        voters.append(voter)
    return tuple(voters)


def _wrong(key: str, item: str, complaint: str) -> ConfigError:
    return ConfigError(key, complaint, item)


class Listening(Protocol):
    """The part of a node's settings that listeners are checked against."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def broker_endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def inter_broker_listener(self) -> str: ...
    @property
    def scriba_allow_insecure_bind(self) -> bool: ...
    @property
    def is_broker(self) -> bool: ...


def check_listeners(node: Listening) -> None:
    """ConfigError unless a node can serve, and may serve, on all of its listeners."""
    if node.is_broker and not node.broker_endpoints:
        raise ConfigError("listeners", "has none for clients; add PLAINTEXT://127.0.0.1:9092")
    if not node.is_broker and node.broker_endpoints:
        raise _wrong(
            "listeners",
            str(node.broker_endpoints[0]),
            "process.roles=controller serves no clients; drop it, or name it in "
            "controller.listener.names",
        )
    for endpoint in node.endpoints:
        if endpoint.protocol not in SERVED_PROTOCOLS:
            raise _wrong(
                "listeners", str(endpoint), f"{endpoint.protocol} is not served yet; use PLAINTEXT"
            )
        if not endpoint.is_loopback and not node.scriba_allow_insecure_bind:
            raise _wrong(
                "listeners",
                str(endpoint),
                "other machines could reach it without authentication; bind it to 127.0.0.1, or "
                "allow it with scriba.allow.insecure.bind=true",
            )
    names = {e.name for e in node.broker_endpoints}
    for endpoint in node.advertised_endpoints:
        if endpoint.name not in names:
            raise _wrong("advertised.listeners", str(endpoint), "listeners has none of that name")
        if endpoint.host in WILDCARDS:
            raise _wrong(
                "advertised.listeners",
                str(endpoint),
                "no client can connect to that; set advertised.listeners to an address of this "
                "machine",
            )
    if node.is_broker and node.inter_broker_listener not in {
        e.name for e in node.advertised_endpoints
    }:
        raise _wrong(
            "inter.broker.listener.name",
            node.inter_broker_listener,
            "not among the advertised listeners of this broker",
        )
