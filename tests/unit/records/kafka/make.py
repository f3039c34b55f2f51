"""Asks Kafka's validator about many batches, good and damaged, and writes down what it says.

Run by hand, with the jars that `make setup` fetches: python -m tests.unit.records.kafka.make
"""

import gzip
import random
import subprocess
from pathlib import Path

from scriba.records.batch import Record, assemble, encode_batch, read_header
from scriba.records.compression import Codec, compress

HERE = Path(__file__).parent
JARS = HERE.parents[3] / ".cache" / "kafka" / "lib" / "*"
CASES = 2000
NOW = 1_700_000_000_000
CODECS = [Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]


def records(rng: random.Random) -> list[Record]:
    def content() -> bytes | None:
        return None if rng.random() < 0.15 else rng.randbytes(1) * rng.choice([0, 1, 5, 70])

    def header() -> tuple[str, bytes | None]:
        return "h" * rng.randrange(3), content()

    times = [-1, 0, NOW - 5, NOW, NOW, NOW, NOW + 5, NOW + 2000]
    spread = rng.random() < 0.5
    return [
        Record(
            timestamp=rng.choice(times) if spread else NOW + index,
            key=content(),
            value=content(),
            headers=[header() for _ in range(rng.choice([0, 0, 0, 1, 2]))],
        )
        for index in range(rng.randrange(1, 5))
    ]


def damaged(section: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(section))
    match rng.randrange(5):
        case 0:
            section[at] = rng.randrange(256)
        case 1:
            section[at] ^= 1 << rng.randrange(8)
        case 2:
            del section[at : at + rng.randrange(1, 4)]
        case 3:
            section[at:at] = rng.randbytes(rng.randrange(1, 4))
        case _:
            section[at] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
    return section


def case(rng: random.Random) -> str:
    whole = encode_batch(records(rng))
    header = read_header(whole)
    section = whole[61:]
    if rng.random() < 0.7:
        section = damaged(section, rng)
    codec = rng.choice(CODECS)
    changes = {"attributes": int(codec)}
    if rng.random() < 0.1:
        changes["count"] = header.count + rng.choice([-1, 1])
        changes["last_offset_delta"] = changes["count"] - 1
    if rng.random() < 0.2:
        changes["max_timestamp"] = rng.choice([-1, 0, NOW, NOW + 10**6])
    if rng.random() < 0.1:
        changes["attributes"] |= 8
    batch = assemble(header._replace(**changes), compress(codec, section))
    earliest = rng.choice([NOW - 2**62, NOW - 1000, NOW - 5])
    fields = (NOW, earliest, NOW + rng.choice([4, 1000]), *rng.choices((0, 1), (4, 1), k=2))
    return "\t".join([*map(str, fields), batch.hex()])


def main() -> None:
    rng = random.Random(7)
    asked = "\n".join(case(rng) for _ in range(CASES))
    answered = subprocess.run(
        ["java", "-cp", str(JARS), str(HERE / "Verdicts.java")],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    target = HERE / "verdicts-4.3.0.tsv.gz"
    target.write_bytes(gzip.compress(answered.encode(), mtime=0))


if __name__ == "__main__":
    main()
