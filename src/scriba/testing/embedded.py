"""A broker for tests: started in a moment, told what to do wrong, asked what it has.

`Broker` is all that a test sees. Its methods may be called from any thread, and from a coroutine:
the broker runs beside it, so it answers while the caller's loop waits.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, Self

from scriba.config import ConfigError
from scriba.errors import ErrorCode
from scriba.runtime.loop.hosting import in_a_thread, temporary_directory, until
from scriba.settings import NodeSettings
from scriba.settings.listeners import WILDCARDS
from scriba.testing.carried import api_named, error_named
from scriba.testing.hosts import Host, ProcessHost, ThreadHost
from scriba.testing.model import Group, Record, Transaction

Value = str | int | float | bool | Iterable[str]

TEST_SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""What a broker for tests starts with: any free port, nobody waits for members that may yet come,
and the coordinators' topics have no more partitions than one broker needs."""

DATA: Final = ("log.dirs", "log.dir", "metadata.log.dir")


class Clock:
    """The broker's clock: the real time, and what it was advanced by."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def advance(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Lets time pass at once, for the monotonic and for the wall clock.

        Returns when all that was due in that time has been done: sessions and transactions have
        expired, retention has deleted, waiting requests are answered. The program under test keeps
        the real time: to the broker its clients were silent meanwhile.
        """
        given = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        time = given + timedelta(minutes=minutes, hours=hours, days=days)
        if time < timedelta():
            raise ValueError(f"time does not go back: {time}")
        self._broker._advance(time // timedelta(milliseconds=1))

    def time(self) -> float:
        """What the broker takes for the time: seconds since 1970."""
        wall_ms: int = self._broker._call("wall_ms")
        return wall_ms / 1000


class Broker:
    """One Kafka broker that belongs to a test. Made by `scriba.testing.broker()`."""

    def __init__(
        self,
        settings: Mapping[str, Value] | None = None,
        *,
        data: str | None = None,
        process: bool = False,
        **keywords: Value,
    ) -> None:
        self._settings = TEST_SETTINGS | _named(settings or {}, keywords)
        self._kept = data
        self._process = process
        self._directory: Any = None
        self._host: Host | None = None
        self._addresses: list[tuple[str, int]] = []
        self._ahead_ns = 0
        self._paused = False
        self.clock = Clock(self)
        # Wrong settings are told here and not from another thread or process.
        _check(self._settings, data or "data")

    # ---- life ----

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        try:
            await in_a_thread(self.start)
        except BaseException:  # cancelled, for example, while it started
            await in_a_thread(self.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_a_thread(self.close)

    @property
    def running(self) -> bool:
        return self._host is not None

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given; it stays the same over restarts."""
        if not self._addresses:
            raise RuntimeError("the broker has not been started: use `with`, or call start()")
        return ",".join(f"{host}:{port}" for host, port in self._addresses)

    @property
    def data(self) -> str:
        """The directory of its files."""
        if self._kept is None and self._directory is None:
            raise RuntimeError("the broker has not been started: use `with`, or call start()")
        return self._kept or str(self._directory.name)

    @property
    def pid(self) -> int | None:
        """Of its process; None for a broker that runs in this one."""
        return self._host.pid if self._host is not None else None

    def start(self) -> None:
        """Starts it, or starts it again after `stop`: with the same port, data and clock."""
        if self._host is not None:
            raise RuntimeError("the broker runs already")
        if self._kept is None and self._directory is None:
            self._directory = temporary_directory()
        host: Host = ProcessHost() if self._process else ThreadHost()
        bound = host.start(self._settings | {"log.dirs": self.data}, self._ahead_ns)
        self._host = host
        if not self._addresses:
            self._addresses = [(_reachable(name), port) for name, port in bound]
            self._settings["listeners"] = _with_ports(self._settings["listeners"], bound)

    def stop(self, kill: bool = False) -> None:
        """Stops it cleanly, or as a crash would; its data stays for the next `start`."""
        host = self._host
        if host is None:
            return
        self._host, self._paused = None, False
        if kill:
            host.kill()
        else:
            host.stop()

    def restart(self, kill: bool = False) -> None:
        """Stops it, cleanly or as a crash would, and starts it on the same port.

        A broker with a process of its own is killed with SIGKILL. One in the test's process drops
        its connections and leaves its files as they are: for the next start that is the same.
        """
        self.stop(kill)
        self.start()

    def close(self) -> None:
        """Stops it and removes its data, unless that was given a place of its own."""
        try:
            self.stop()
        finally:
            if self._directory is not None:
                self._directory.cleanup()
                self._directory = None

    def pause(self) -> None:
        """It stands still, as in a long collection of garbage: connected, and silent."""
        host = self._running()
        if not self._paused:
            host.hold()
            self._paused = True

    def resume(self) -> None:
        if self._host is not None and self._paused:
            self._host.release()
            self._paused = False

    def reset(self) -> None:
        """All topics, groups, transactions, run-time settings and faults are gone afterwards.

        Connections stay, and so does the clock.
        """
        self._call("reset")

    # ---- faults ----

    def fail_next(
        self, api: str, error: str | ErrorCode, *, times: int = 1, client_id: str | None = None
    ) -> None:
        """Answers the next requests of an API with an error and does not carry them out.

        `api` and `error` have Kafka's names: `fail_next("Produce", "NOT_ENOUGH_REPLICAS")`. The
        error stands where the API has it: for every partition, topic or group of the request. With
        `client_id`, only that client's requests count. ValueError for an error that no broker
        answers to that API.
        """
        key = api_named(api)
        self._arm(key, times, client_id, error=error_named(key, error))

    def delay(self, api: str, ms: int, *, times: int = 1, client_id: str | None = None) -> None:
        """Carries out the next requests of an API, and holds their answers back for so long.

        The time is the broker's: `clock.advance` ends the wait.
        """
        if ms <= 0:
            raise ValueError(f"a delay is at least a millisecond, not {ms}")
        self._arm(api_named(api), times, client_id, delay_ms=ms)

    def drop_next(
        self, api: str, *, times: int = 1, carried_out: bool = True, client_id: str | None = None
    ) -> None:
        """Closes the connection instead of answering the next requests of an API.

        They have been carried out, unless `carried_out` is false: the client cannot know.
        """
        self._arm(api_named(api), times, client_id, drop=True, carried_out=carried_out)

    def drop_connections(self) -> int:
        """Closes every client's connection; how many there were."""
        count: int = self._call("drop_connections")
        return count

    def clear_faults(self) -> None:
        """Disarms what is left of `fail_next`, `delay` and `drop_next`."""
        self._call("clear_faults")

    # ---- what is there ----

    def topics(self) -> list[str]:
        """Names, sorted, without the coordinators' own topics."""
        names: list[str] = self._call("topics")
        return names

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        uncommitted: bool = False,
        at_least: int = 0,
        timeout: float = 30,
    ) -> list[Record]:
        """All records of a topic, partition by partition, as `read_committed` consumers see them.

        `uncommitted` adds those of open and of aborted transactions. With `at_least`, waits for so
        many, over restarts and pauses, and raises TimeoutError after `timeout` seconds; a coroutine
        whose own loop has to write them awaits `asyncio.to_thread(broker.records, ...)`.
        """
        if not at_least:
            found: list[Record] = self._call("records", topic, partition, uncommitted)
            return found
        self._answering()
        for _ in until(timeout):
            host = self._host
            if host is None or self._paused:
                continue  # it may be on its way back
            try:
                if topic in host.call("topics"):
                    found = host.call("records", topic, partition, uncommitted)
                    if len(found) >= at_least:
                        return found
            except Exception:
                if self._host is host:
                    raise  # else it was stopped meanwhile
        raise TimeoutError(f"{topic} does not have {at_least} records after {timeout} s")

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group: {(topic, partition): offset}."""
        offsets: dict[tuple[str, int], int] = self._call("committed", group)
        return offsets

    def groups(self) -> list[Group]:
        groups: list[Group] = self._call("groups")
        return groups

    def transactions(self) -> list[Transaction]:
        transactions: list[Transaction] = self._call("transactions")
        return transactions

    # ---- changes ----

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Value] | None = None,
        **keywords: Value,
    ) -> str:
        """Creates a topic; its name. Settings by Kafka's names, as for the broker."""
        self._call("create_topic", name, partitions, _named(settings or {}, keywords))
        return name

    def delete_topic(self, name: str) -> None:
        self._call("delete_topics", [name])

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str | None] | None = None,
        timestamp: int | None = None,
    ) -> Record:
        """Writes one record; None for a tombstone. Text becomes UTF-8.

        Without `partition` its key decides, as in Java's client; without a key it is partition 0. A
        topic that is not there is created.
        """
        record: Record = self._call(
            "produce",
            topic,
            partition,
            _bytes(key),
            _bytes(value),
            tuple((name, _bytes(text)) for name, text in (headers or {}).items()),
            timestamp,
        )
        return record

    # ---- the other side ----

    def _arm(self, api: int, times: int, client_id: str | None, **what: Any) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, not {times}")
        self._call("arm", {"api": int(api), "times": times, "client_id": client_id} | what)

    def _advance(self, ms: int) -> None:
        self._ahead_ns = self._call("advance", ms)

    def _call(self, name: str, *values: Any) -> Any:
        return self._answering().call(name, *values)

    def _answering(self) -> Host:
        host = self._running()
        if self._paused:
            raise RuntimeError("the broker is paused: resume() it first")
        return host

    def _running(self) -> Host:
        if self._host is None:
            raise RuntimeError("the broker does not run: use `with`, or call start()")
        return self._host


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _named(settings: Mapping[str, Value], keywords: Mapping[str, Value]) -> dict[str, str]:
    """All settings by Kafka's names, as text."""
    texts: dict[str, str] = {}
    for given, value in (*settings.items(), *keywords.items()):
        name = given.replace("_", ".")
        if name in texts:
            raise ConfigError(name, "is given twice; drop one")
        texts[name] = _text(value)
    return texts


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(value)


def _check(settings: Mapping[str, str], data: str) -> None:
    for name in DATA:
        if name in settings:
            raise ConfigError(name, "is not for a test's broker; say data=... instead")
    screened = NodeSettings.parse({**settings, "log.dirs": data}).screened
    for name in (*screened.ignored, *screened.waiting):
        raise ConfigError(name, "has no effect here; leave it out")


def _reachable(host: str) -> str:
    if host in WILDCARDS:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _with_ports(listeners: str, bound: list[tuple[str, int]]) -> str:
    """The listeners with the ports that they got, for the next start."""
    ports = iter(port for _, port in bound)
    told = []
    for listener in listeners.split(","):
        address, colon, port = listener.strip().rpartition(":")
        got = next(ports, None)
        told.append(f"{address}{colon}{got if port == '0' and got else port}")
    return ",".join(told)
