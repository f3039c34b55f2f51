"""Our codecs and declarations against the bytes and the facts of Kafka's released jars.

`corpus.jsonl.gz` (made by `make.sh`) holds, as plain data, what Kafka's own code says: the facts
of every message, cases of values with their bytes, error codes, API versions.
"""

import base64
import gzip
import json
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NamedTuple

import pytest

import scriba.wire
from scriba.errors import ErrorCode
from scriba.wire import frame, uuids
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import stored
from scriba.wire.schema import (
    NONE,
    OWN_TAGS,
    Field,
    Message,
    Struct,
    Type,
    Versions,
    parse_versions,
)
from scriba.wire.views import revoker

Json = dict[str, Any]


class Corpus(NamedTuple):
    facts: dict[str, Json]
    cases: list[Json]
    errors: list[Json]
    apis: list[Json]


def load() -> Corpus:
    corpus = Corpus({}, [], [], [])
    with gzip.open(Path(__file__).with_name("corpus.jsonl.gz"), "rt") as lines:
        for line in map(json.loads, lines):
            if "facts" in line:
                corpus.facts[line["facts"]["name"]] = line["facts"]
            elif "message" in line:
                corpus.cases.append(line)
            elif "error" in line:
                corpus.errors.append(line)
            else:
                corpus.apis.append(line)
    return corpus


def declared() -> dict[str, type[Message]]:
    """Every message class of the package, but the one that stands for those of later releases."""
    found = walk_packages(scriba.wire.__path__, "scriba.wire.")
    modules = [import_module(module.name) for module in found]
    members = [value for module in modules for value in vars(module).values()]
    return {
        cls.__name__: cls
        for cls in members
        if isinstance(cls, type)
        and issubclass(cls, Message)
        and cls not in (Message, stored.UnknownRecord)
    }


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("KRaft", "Kraft")).lower()


def structs(facts: Json) -> dict[str, list[Json]]:
    """The fields of each structure that a message names."""
    found = {s["name"]: s["fields"] for s in facts.get("commonStructs", [])}
    pending = [*facts["fields"], *(f for fields in found.values() for f in fields)]
    for field in pending:
        if "fields" in field:
            found[field["type"].removeprefix("[]")] = field["fields"]
            pending.extend(field["fields"])
    return found


def kafkas(cls: type[Struct]) -> list[Field]:
    """The fields of a structure without those that are ours."""
    return [field for field in cls.FIELDS if field.tag is None or field.tag < OWN_TAGS]


def versions(field: Json) -> Versions:
    return parse_versions(field.get("versions") or field["taggedVersions"])


class Reader:
    """Turns the JSON values of a case into an object of our classes."""

    def __init__(self, cls: type[Message], facts: Json, version: int) -> None:
        self.cls = cls
        self.facts = facts
        self.structs = structs(facts)
        self.version = version

    def message(self, values: Json) -> Message:
        message = self.struct(self.cls, self.facts["fields"], values)
        assert isinstance(message, Message)
        return message

    def struct(self, cls: type[Struct], facts: list[Json], values: Json) -> Struct:
        arguments = {}
        for field, fact in zip(kafkas(cls), facts, strict=True):
            key = fact["name"][0].lower() + fact["name"][1:]
            if self.version in versions(fact) and key in values:
                kind = fact["type"].removeprefix("[]")
                arguments[field.name] = self.value(field.type, kind, values[key])
        return cls(**arguments)

    def value(self, type_: Type, kind: str, value: Any) -> Any:
        if value is None:
            return None
        if type_.element is not None:
            return [self.value(type_.element, kind, v) for v in value]
        if type_.struct is not None:
            return self.struct(type_.struct, self.structs[kind], value)
        assert type_.kind is not None
        assert type_.kind.name == kind
        if kind == "uuid":
            return uuids.from_text(value)
        if kind in ("bytes", "records"):
            return base64.b64decode(value)
        return value


CORPUS = load()
DECLARED = declared()
CASES: dict[str, list[Json]] = defaultdict(list)
for case in CORPUS.cases:
    CASES[case["message"]].append(case)

NOT_DECLARED = {"RequestHeader", "ResponseHeader"}
"""Headers are read by hand, in `frame`."""

each_message = pytest.mark.parametrize("name", DECLARED)


def test_every_message_of_kafka_is_declared() -> None:
    known = {
        name
        for name, facts in CORPUS.facts.items()
        if facts["validVersions"] != "none" and not name.startswith("Remote")
    }
    assert known - NOT_DECLARED == set(DECLARED)


@each_message
def test_every_declared_version_has_cases(name: str) -> None:
    low, high = DECLARED[name].VERSIONS
    assert {case["version"] for case in CASES[name]} == set(range(low, high + 1))


@each_message
def test_bytes_and_values_agree_both_ways(name: str) -> None:
    cls, facts = DECLARED[name], CORPUS.facts[name]
    for case in CASES[name]:
        version, data = case["version"], bytes.fromhex(case["bytes"])
        expected = Reader(cls, facts, version).message(case["values"])
        assert expected.encode(version) == data
        for buffer in (data, bytearray(data), memoryview(data)):
            decoded = cls.decode(buffer, version)
            assert decoded == expected
        assert decoded.encode(version) == data


@each_message
def test_a_revoked_message_has_no_view_of_its_buffer(name: str) -> None:
    cls = DECLARED[name]
    revoke = revoker(cls)
    for case in CASES[name]:
        memory = bytearray.fromhex(case["bytes"])
        frame = memoryview(memory)
        message = cls.decode(frame, case["version"])
        frame.release()
        if revoke is not None:
            revoke(message)
        memory.append(0)  # BufferError while there is a view
        assert message is not None


@each_message
def test_declaration_matches_the_facts_field_by_field(name: str) -> None:
    cls, facts = DECLARED[name], CORPUS.facts[name]
    assert facts.get("apiKey") == cls.KEY
    assert parse_versions(facts["validVersions"]) == cls.VERSIONS
    assert parse_versions(facts["flexibleVersions"]) == cls.FLEXIBLE
    check_struct(cls, cls, facts["fields"], structs(facts))


def test_tags_of_our_own_are_few_and_change_nothing_for_others() -> None:
    """Who does not know them passes them over, and they are only sent where they are set."""
    own = [
        (f"{name}.{field.name}", field)
        for name, cls in DECLARED.items()
        for field in cls.FIELDS
        if field not in kafkas(cls)
    ]
    assert [name for name, _ in own] == ["AlterPartitionReassignmentsRequest.order_only"]
    assert all(field.ignorable for _, field in own)


def check_struct(
    message: type[Message],
    cls: type[Struct],
    facts: list[Json],
    structs: dict[str, list[Json]],
) -> None:
    assert [f.name for f in kafkas(cls)] == [snake(fact["name"]) for fact in facts]
    for field, fact in zip(kafkas(cls), facts, strict=True):
        where = f"{cls.__name__}.{field.name}"
        type_, kind = field.type, fact["type"].removeprefix("[]")
        assert (type_.element is not None) == fact["type"].startswith("[]"), where
        innermost = type_.element or type_
        if innermost.kind is not None:
            assert innermost.kind.name == kind, where
        else:
            assert innermost.struct is not None
            check_struct(message, innermost.struct, structs[kind], structs)
        assert field.within == versions(fact), where
        assert field.tag == fact.get("tag"), where
        assert field.default() == default_of(fact, innermost.struct), where
        nullable = parse_versions(fact.get("nullableVersions", "none"))
        ignorable = str(fact.get("ignorable", False)).lower() == "true"
        assert type_.optional or nullable == NONE, where
        for version in range(message.VERSIONS.low, message.VERSIONS.high + 1):
            if version in field.within:
                assert (version in field.nullable) == (version in nullable), where
            else:
                assert field.ignorable == ignorable, where


def default_of(fact: Json, struct: type[Struct] | None) -> Any:
    """What Kafka says an attribute is when nobody set it."""
    given = fact.get("default") or ""  # Kafka takes a null without quotes for no default at all
    if given == "null":
        return None
    if fact["type"].startswith("[]"):
        return []
    if struct is not None:
        return struct()
    match fact["type"]:
        case "string":
            return given
        case "bool":
            return str(given).lower() == "true"
        case "bytes":
            return b""
        case "records":
            return None
        case "uuid":
            return bytes(16)
        case "float64":
            return float(given or 0)
        case _:
            return int(str(given or 0), 0)


def test_stored_records_have_their_prefix() -> None:
    seen = set()
    for case in CORPUS.cases:
        if "framed" not in case:
            continue
        cls, version = DECLARED[case["message"]], case["version"]
        message = cls.decode(bytes.fromhex(case["bytes"]), version)
        framed = bytes.fromhex(case["framed"])
        kind = CORPUS.facts[case["message"]]["type"]
        seen.add(kind)
        if kind == "metadata":
            assert stored.encode_metadata_record(message, version) == framed
            assert stored.decode_metadata_record(framed) == message
        else:
            number = cls.KEY if kind == "coordinator-key" else version
            assert number is not None
            assert stored.encode_prefixed(number, message, version) == framed
            assert stored.read_prefix(framed) == number
    assert seen == {"metadata", "coordinator-key", "coordinator-value"}


def test_quorum_state_file() -> None:
    for case in CASES["QuorumStateData"]:
        state = stored.QuorumStateData.decode(bytes.fromhex(case["bytes"]), case["version"])
        content = stored.encode_quorum_state(state, case["version"])
        assert json.loads(content) == json.loads(case["file"])
        assert stored.decode_quorum_state(case["file"].encode()) == state


def test_request_headers() -> None:
    for case in CASES["RequestHeader"]:
        values, data = case["values"], bytes.fromhex(case["bytes"])
        # The corpus makes API keys up; the header's version follows from the real ones.
        key, version = (ApiKey.FETCH, 12) if case["version"] == 2 else (ApiKey.FETCH, 11)
        data = key.to_bytes(2, "big") + version.to_bytes(2, "big") + data[4:]
        header, end = frame.decode_request_header(data + b"body")
        assert data[end:] == b""
        expected = (key, version, values["correlationId"], values["clientId"])
        assert header == expected


def test_error_codes() -> None:
    facts = {(e["error"], e["name"], e["retriable"]) for e in CORPUS.errors}
    assert {(e.value, e.name, e.retriable) for e in ErrorCode} == facts


def test_api_table() -> None:
    assert sorted(API) == sorted(fact["api"] for fact in CORPUS.apis)
    for fact in CORPUS.apis:
        api = API[fact["api"]]
        assert api.key.name == fact["name"]
        assert (api.min_version, api.max_version) == (fact["oldest"], fact["latest"])
        listeners = CORPUS.facts[f"{api.name}Request"]["listeners"]
        assert (api.on_broker, api.on_controller) == (
            "broker" in listeners,
            "controller" in listeners,
        )
        assert api.request.KEY == api.response.KEY == api.key
        assert api.request.VERSIONS == api.response.VERSIONS
        for i, expected in enumerate(fact["requestHeaders"]):
            assert 1 + (api.min_version + i >= api.flexible_from) == expected
        for i, expected in enumerate(fact["responseHeaders"]):
            assert frame.response_header_version(api.key, api.min_version + i) == expected
