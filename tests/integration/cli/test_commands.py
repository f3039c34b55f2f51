"""The commands as a person types them, against a running node, and side by side with kcat.

Most run in this process, since each start of an interpreter costs; those where a signal, a pipe or
standard input matters are processes of their own.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scriba.cli.main import main
from tests.integration.commands import PATIENCE, Done, Scriba, piped, start
from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker


def kcat(cluster: Broker, *words: str, stdin: bytes = b"") -> bytes:
    command = ["kcat", "-b", cluster.bootstrap, "-m", "20", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


# -- topics, settings, cluster -------------------------------------------------------------------


def test_the_life_of_a_topic(scriba: Scriba, topic: str) -> None:
    made = scriba("topic", "create", topic, "-p", "3", "-c", "retention.ms=3600000")
    assert made.text == f"created {topic}: 3 partitions, replication factor 1\n"
    taken = scriba("topic", "create", topic).line
    assert "TOPIC_ALREADY_EXISTS" in taken
    assert taken.endswith("; --if-not-exists leaves it as it is")
    again = scriba("topic", "create", topic, "--if-not-exists")
    assert (again.code, again.out) == (0, "")
    document = json.loads(scriba("topic", "create", topic, "--if-not-exists", "--json").out)
    assert (document["created"], document["partitions"]) == (False, 3)
    listed = scriba("topic", "list", "--json").json
    assert [t["partitions"] for t in listed if t["topic"] == topic] == [3]
    assert topic in scriba("topic", "list").text

    (described,) = scriba("topic", "describe", topic, "--json").json
    assert described["config"] == {"retention.ms": "3600000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    page = scriba("topic", "describe", topic).text.splitlines()
    assert page[1] == "  config: retention.ms=3600000"
    assert page[2].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"]
    assert page[5].split()[-3:] == ["0", "0", "0"]

    assert scriba("topic", "delete", topic).text == f"deleted {topic}\n"
    assert "UNKNOWN_TOPIC_OR_PARTITION" in scriba("topic", "describe", topic).line
    assert "(fix: create the topic, or check its name)" in scriba("topic", "delete", topic).line
    assert scriba("topic", "delete", topic, "--if-exists", "--json").json == {"deleted": []}


def test_partitions_are_added_with_a_warning_and_never_taken_away(
    scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic, "-p", "2")
    added = scriba("topic", "alter", topic, "-p", "4")
    assert added.out == f"{topic} has 4 partitions, before it had 2\n"
    assert added.err.startswith("warning: records with a key go to other partitions")
    assert scriba("topic", "alter", topic, "-p", "4").text == f"{topic} has 4 partitions already\n"
    refused = scriba("topic", "alter", topic, "-p", "3").line
    assert refused.startswith(f"{topic} has 4 partitions and cannot have fewer")
    assert "create another topic with 3" in refused


def test_a_topic_is_copied_into_one_with_fewer_partitions_as_the_refusal_says(
    scriba: Scriba, topic: str, tmp_path: Path
) -> None:
    copy = f"{topic}-copy"
    scriba("topic", "create", topic, "-p", "4")
    scriba("topic", "create", copy, "-p", "2")
    lines = [{"key": f"k{n % 5}", "value": str(n), "partition": n % 4} for n in range(40)]
    scriba("produce", topic, write_lines(tmp_path / "in", lines), "--json", "-q")
    read = scriba("consume", topic, "--json", "--exit").text
    (tmp_path / "out").write_text(read)
    where = str(tmp_path / "out")
    refused = scriba("produce", copy, where, "--json", "-q").error
    assert "has no partition" in refused["message"]
    scriba("topic", "delete", copy)
    scriba("topic", "create", copy, "-p", "2")
    assert scriba("produce", copy, where, "--json", "-q", "--repartition").text == ""
    copied = scriba("consume", copy, "--json", "--exit").json_lines
    assert sorted(int(record["value"]) for record in copied) == list(range(40))
    homes = {(record["key"], record["partition"]) for record in copied}
    assert len(homes) == 5, "a key has one partition"


def test_a_plan_and_a_dry_run_create_nothing(scriba: Scriba, topic: str) -> None:
    plan = scriba("topic", "create", topic, "--plan", "95", "--json").json
    assert (plan["partitions"], plan["brokers"]) == (10, 1)
    told = scriba("topic", "create", topic, "--plan", "95", "--per-consumer", "5").text
    assert told.startswith(f"95 MB/s into {topic}: 19 partitions\n")
    assert f"scriba topic create {topic} --partitions 19\n" in told
    tried = scriba("topic", "create", topic, "--dry-run", "-p", "5")
    assert tried.text == f"could create {topic}: 5 partitions, replication factor 1\n"
    assert "INVALID_REPLICATION_FACTOR" in scriba("topic", "create", topic, "-r", "9").line
    assert topic not in scriba("topic", "list").text


def test_settings_of_a_topic_are_set_shown_and_deleted(scriba: Scriba, topic: str) -> None:
    scriba("topic", "create", topic)
    here = ["--topic", topic]

    def of_its_own() -> dict[str, str]:
        lines = scriba("config", "get", *here).out.splitlines()[1:]
        return {key: value for key, value, *source in map(str.split, lines) if source == ["topic"]}

    assert of_its_own() == {}
    changed = scriba("config", "set", *here, "flush.ms=1000", "max.message.bytes=2000")
    assert changed.text.splitlines()[0] == f"topic {topic}: flush.ms is 1000"
    eventually(lambda: of_its_own() == {"flush.ms": "1000", "max.message.bytes": "2000"})
    scriba("config", "set", *here, "--delete", "flush.ms", "segment.bytes=2000000")
    eventually(lambda: [*of_its_own()] == ["max.message.bytes", "segment.bytes"])
    (one,) = scriba("config", "get", *here, "flush.ms", "--json").json
    assert (one["value"], one["source"], one["type"]) == (
        str(2**63 - 1), "DEFAULT_CONFIG", "long",
    )  # fmt: skip
    assert len(scriba("config", "get", *here, "--all", "--json").json) > 20
    assert "INVALID_CONFIG" in scriba("config", "set", *here, "flush.ms=x").line
    nowhere = scriba("config", "set", "--broker", "987", "flush.ms=1").line
    assert nowhere.startswith("there is no broker 987")
    misspelt = scriba("config", "get", *here, "flush.mss").line
    assert "no setting flush.mss; did you mean flush.ms" in misspelt


def test_settings_of_a_broker_and_of_all_brokers(
    own_cluster: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "message.max.bytes"

    def run(*words: str) -> Any:
        assert main(["config", *words, "-b", own_cluster.bootstrap, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    def in_force() -> tuple[str, str]:
        (entry,) = run("get", "--broker", "1", key)
        return entry["value"], entry["source"]

    run("set", "--cluster", f"{key}=2000000")
    eventually(lambda: in_force() == ("2000000", "DYNAMIC_DEFAULT_BROKER_CONFIG"))
    assert (key, "2000000") in [(e["name"], e["value"]) for e in run("get", "--cluster")]
    run("set", "--cluster", "-d", key)
    eventually(lambda: in_force()[1] == "DEFAULT_CONFIG")


def test_the_cluster_is_described(cluster: Broker, scriba: Scriba) -> None:
    document = scriba("cluster", "describe", "--json").json
    (broker,) = document["brokers"]
    assert f"{broker['host']}:{broker['port']}" == cluster.bootstrap
    assert broker["log_dirs"][0]["path"]
    assert document["quorum"]["leader"] == document["controller"] == broker["id"]
    assert document["features"]["metadata.version"] > 0
    page = scriba("cluster", "describe").text
    assert page.startswith(f"cluster {document['id']}, controller {broker['id']}\n")
    assert cluster.bootstrap in page


def test_a_cluster_that_does_not_answer_is_told_in_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = main(["topic", "list", "-b", "127.0.0.1:1", "--timeout", "0.3"])
    line = Done(code, *capfd.readouterr()).line
    assert line.startswith("no answer from 127.0.0.1:1 (cannot connect to 127.0.0.1:1: Connection")
    assert line.endswith("; start a node with `scriba up`, or name a broker with --bootstrap")


# -- records -------------------------------------------------------------------------------------

AWKWARD: list[dict[str, Any]] = [
    {"key": "k", "value": "v", "headers": [], "partition": 0, "timestamp": 1_700_000_000_000},
    {"key": None, "value": None, "headers": [], "partition": 0, "timestamp": 1_700_000_000_001},
    {"key": "", "value": "", "headers": [["", ""]], "partition": 0, "timestamp": 1},
    {
        "key": {"base64": "/wA="},
        "value": {"base64": "gICA"},
        "headers": [["h", "1"], ["h", None], ["ü", {"base64": "/w=="}]],
        "partition": 0,
        "timestamp": 0,
    },
    {"key": "ключ", "value": 'two\nlines "and" \u2028', "headers": [], "partition": 0,
     "timestamp": 1_700_000_000_002},
]  # fmt: skip


def test_json_lines_make_the_round_trip_without_loss(
    scriba: Scriba, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    first, second = new_topic(), new_topic()
    for name in (first, second):
        assert scriba("topic", "create", name, "-p", "2").code == 0
    records = [*AWKWARD, *({**record, "partition": 1} for record in AWKWARD)]
    file = write_lines(tmp_path / "in", records)
    told = json.loads(scriba("produce", first, file, "--json").err)
    assert told["done"]["records"] == 10
    read = scriba("consume", first, "--exit", "--json")
    copy = tmp_path / "copy"
    copy.write_text(read.text)
    scriba("produce", second, str(copy), "--json", "--quiet").text  # noqa: B018
    for text in (read, scriba("consume", second, "-e", "--json")):
        found = sorted(text.json_lines, key=lambda r: (r["partition"], r["offset"]))
        assert [{name: r[name] for name in AWKWARD[0]} for r in found] == records
        assert [r["offset"] for r in found] == [0, 1, 2, 3, 4] * 2
        assert {r["timestamp_type"] for r in found} == {"create"}


def test_kcat_reads_what_produce_wrote(cluster: Broker, scriba: Scriba, topic: str) -> None:
    scriba("topic", "create", topic)
    lines = b"".join(b"key%d:value %d\n" % (n, n) for n in range(100)) + b"\xff:last \xfe"
    words = ["-K", ":", "-H", "from=scriba", "-H", "n=1", "-z", "zstd"]
    assert piped(cluster, lines, "produce", topic, *words) == (0, b"", b"")
    shown = kcat(cluster, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s %h\\n")
    assert shown == b"".join(line + b" from=scriba,n=1\n" for line in lines.split(b"\n"))


def test_consume_writes_what_kcat_wrote_as_kcat_writes_it(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    kcat(cluster, "-P", "-t", topic, "-K", ":", "-H", "a=1", "-H", "b", stdin=b"k:v\n:no key\n")
    kcat(cluster, "-P", "-t", topic, "-K", ":", "-Z", stdin=b"gone:\n:\n")
    form = r"%t|%p|%o|%k|%K|%s|%S|%T|%h|%%|\t\x41\n"
    theirs = kcat(cluster, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", form)
    assert theirs.count(b"\n") == 4
    assert scriba("consume", topic, "-e", "-f", form).text == theirs.decode()


def test_places_to_begin_at(scriba: Scriba, topic: str, tmp_path: Path) -> None:
    scriba("topic", "create", topic)
    base = 1_700_000_000_000
    records = [{"value": str(n), "timestamp": base + n * 1000} for n in range(10)]
    scriba("produce", topic, write_lines(tmp_path / "in", records), "--json", "-q")

    def read(*words: str) -> list[str]:
        return scriba("consume", topic, "-e", *words).text.split()

    everything = [str(n) for n in range(10)]
    assert read() == read("--from-beginning") == read("-o", "beginning") == everything
    assert read("-o", "7") == ["7", "8", "9"]
    assert read("-o", "-2") == ["8", "9"]
    assert read("-o", "-20") == everything
    assert read("-o", f"@{base + 6500}") == ["7", "8", "9"]
    assert read("-o", "2023-11-14T22:13:28Z") == ["8", "9"]
    assert read("-o", "2h ago") == read("-o", "end") == []
    assert read("-o", "3", "--count", "2", "-p", "0") == ["3", "4"]
    beyond = scriba("consume", topic, "-e", "-o", "99")
    assert (beyond.code, beyond.out) == (0, "")
    assert beyond.err == f"note: {topic}-0 has no offset 99; reading it from 10\n"


@pytest.mark.parametrize(
    ("lines", "words", "complaint"),
    [
        ("a:1\nb\n", ["-K", ":"], "line 2 has no key: ':' is not in it; 1 record was written"),
        ('{"value": "1"}\n\n{"vlaue": ""}\n', ["--json"], "line 3 has an unknown field 'vlaue'"),
        ('{"value": "", "partition": 7}\n', ["--json"], "line 1: TOPIC has no partition 7"),
        ("x" * 3000 + "\n", [], "line 1: TOPIC-0: MESSAGE_TOO_LARGE"),
        ("x" * 2000000 + "\n", [], "line 1: the record has 2000"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(
    scriba: Scriba, topic: str, tmp_path: Path, lines: str, words: list[str], complaint: str
) -> None:
    scriba("topic", "create", topic, "-c", "max.message.bytes=2000")
    (tmp_path / "in").write_text(lines)
    done = scriba("produce", topic, str(tmp_path / "in"), "--quiet", *words)
    told = done.error["message"] if "--json" in words else done.line
    assert told.startswith(complaint.replace("TOPIC", topic))


def test_a_missing_topic_or_partition_is_told_at_once(scriba: Scriba, topic: str) -> None:
    assert "UNKNOWN_TOPIC_OR_PARTITION" in scriba("consume", topic).line
    scriba("topic", "create", topic)
    assert scriba("consume", topic, "-p", "4").line == (
        f"{topic} has no partition 4; choose one below 1"
    )


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe", "a\udcff"),
        ("topic", "create", "t", "-c", "a\udcff=1"),
        ("group", "describe", "a\udcff"),
        ("produce", "{topic}", "--key", "a\udcff"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_told_in_a_line(
    scriba: Scriba, topic: str, tmp_path: Path, words: Sequence[str]
) -> None:
    scriba("topic", "create", topic)
    lines = write_lines(tmp_path / "in", [{"value": "v"}])
    given = [word.format(topic=topic) for word in words] + [lines] * (words[0] == "produce")
    told = "'a\\udcff' is not UTF-8; give names and values in UTF-8"
    assert scriba(*given) == Done(2, "", f"scriba: {told}\n")


def test_lines_are_sent_as_they_come_and_ctrl_c_ends_both_sides(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    with (
        start(cluster, "produce", topic, stdin=subprocess.PIPE) as producing,
        start(cluster, "consume", topic) as consuming,
    ):
        assert producing.stdin is not None
        assert consuming.stdout is not None
        for line in (b"first\n", b"second\n"):
            producing.stdin.write(line)
            producing.stdin.flush()
            assert consuming.stdout.readline() == line
        for process in (producing, consuming):
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
            assert process.stderr is not None
            assert process.stderr.read() == b""


def test_a_reader_that_has_enough_is_no_error(
    cluster: Broker, scriba: Scriba, topic: str, tmp_path: Path
) -> None:
    scriba("topic", "create", topic)
    (tmp_path / "in").write_text("".join(f"{n} {'x' * 100}\n" for n in range(5000)))
    told = scriba("produce", topic, str(tmp_path / "in"))
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith("5,000 records, 528.9 kB in ")
    with start(cluster, "consume", topic, "-e") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"0 x")
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("closed", ["<&-", "2>&-", ">&-", "<&- >&- 2>&-"])
def test_files_that_a_shell_closed_end_no_command(
    cluster: Broker, scriba: Scriba, topic: str, closed: str
) -> None:
    scriba("topic", "create", topic)

    def run(words: str) -> tuple[int, str]:
        line = f"exec {sys.executable} -m scriba {words} -b {cluster.bootstrap} {closed}"
        done = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        return done.returncode, done.stderr

    assert run(f"topic describe {topic}") == (0, "")
    told = "scriba: standard output is closed; name a file, or /dev/null\n"
    unread = ">&-" in closed.split()
    assert run(f"consume {topic} --exit") == (
        int(unread),
        told if unread and "2>&-" not in closed else "",
    )
    failed = ["sh", "-c", f"{sys.executable} -m scriba consume none -b {cluster.bootstrap} 2>&-"]
    done = subprocess.run(failed, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_what_was_produced_can_be_dumped_from_the_files(
    own_cluster: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("".join(f"{n}:{'x' * 500}\n" for n in range(2000)))
    at = ["-b", own_cluster.bootstrap]
    assert main(["topic", "create", "t", *at]) == 0
    assert main(["produce", "t", str(tmp_path / "in"), "-K", ":", "-q", "-z", "gzip", *at]) == 0
    own_cluster.stop()
    capfd.readouterr()
    assert main(["log", "dump", "-r", "--json", str(own_cluster.log_dir / "t-0")]) == 0
    *batches, segment = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [r["key"] for batch in batches for r in batch["records"]] == [
        str(n) for n in range(2000)
    ]
    assert {batch["codec"] for batch in batches} == {"gzip"}
    assert segment["records"] == 2000
    assert segment["time_index_entries"] >= 1
