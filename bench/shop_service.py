"""`shop run` as a service: minutes of events, kill -9 in between, every figure against the truth.

    python bench/shop_service.py [--minutes 6] [--rate 50] [--kills 2]

All four queries run while the generator writes. The pipeline is killed with everything it started,
at even distances, and started again. When the generator has ended and nothing is left to read, each
key of each figure is compared. A session or a purchase without a view is told when nothing can
change it any more, so those that are still open may be missing; what is told must be true.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from shop_parts import Part, quick_java, shop_broker  # noqa: E402

from scriba.client import SyncConsumer  # noqa: E402
from scriba.pipelines.shop import topics  # noqa: E402
from scriba.pipelines.shop.rules import (  # noqa: E402
    LOOKED_BEFORE,
    SESSION_GAP,
    WATERMARK,
    milliseconds,
    time_ms,
)

OPEN = {
    topics.USER_SESSIONS: ("ended", WATERMARK + SESSION_GAP),
    topics.JOINED_PURCHASES: ("purchased", WATERMARK + LOOKED_BEFORE),
}
"""Rows that may be missing while they are younger than this."""
MARGIN = timedelta(minutes=2)
QUIET_SECONDS = 25.0


def table(bootstrap: str, topic: str) -> dict[str, dict[str, Any]]:
    with SyncConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        places = consumer.partitions(topic)
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found = {}
        while any(consumer.position(place) < ends[place] for place in places):
            for record in consumer.poll(100):
                found[record.key.decode()] = json.loads(record.value)
    return found


def compare(bootstrap: str, truth: dict[str, Any]) -> bool:
    """Prints a line for each table; whether all are right."""
    newest = max(map(time_ms, (row["window_end"] for row in truth[topics.FUNNEL].values())))
    right = True
    for topic, wanted in truth.items():
        told = table(bootstrap, topic)
        for row in told.values():
            row.pop("query", None)
        wrong = [key for key, row in told.items() if wanted.get(key) != row]
        missing = wanted.keys() - told.keys()
        may = 0
        if topic in OPEN:
            field, age = OPEN[topic]
            limit = newest - milliseconds(age + MARGIN)
            still_open = {key for key in missing if time_ms(wanted[key][field]) >= limit}
            may, missing = len(still_open), missing - still_open
        right = right and not wrong and not missing
        waits = f", {may} still open" if may else ""
        print(
            f"  {topic:<20} {len(told):6} rows, {len(wrong)} wrong, {len(missing)} missing{waits}"
        )
        for key in sorted(wrong)[:2]:
            print(f"    {key}: {told[key]} instead of {wanted.get(key)}")
    return right


def settled(bootstrap: str) -> dict[str, dict[str, Any]]:
    """Waits until no query has anything to read, and says how each did."""
    since = time.monotonic()
    while True:
        told = table(bootstrap, topics.PROGRESS)
        if any(row["lag"] for row in told.values()) or len(told) < len(topics.QUERIES):
            since = time.monotonic()
        if time.monotonic() - since > QUIET_SECONDS:
            return told
        time.sleep(1.0)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--minutes", type=float, default=6.0)
    words.add_argument("--rate", type=float, default=12.0)
    words.add_argument("--kills", type=int, default=2)
    options = words.parse_args()
    seconds = round(options.minutes * 60)
    with shop_broker() as (bootstrap, folder):
        truth = folder / "truth.json"
        reach = ("-b", bootstrap)
        past = ("--backfill", "70m", "--duration", f"{seconds}s", "--truth", str(truth))
        rate = ("--rate", str(options.rate), "-q")
        generator = Part("shop", "generate", *reach, *past, *rate)
        run = ("shop", "run", *reach, "--checkpoints", str(folder / "checkpoints"), *quick_java())
        pipeline = Part(*run, shown=True)
        for _ in range(options.kills):
            time.sleep(seconds / (options.kills + 1))
            print(f"  kill -9 at load {os.getloadavg()[0]:.0f}", flush=True)
            pipeline.kill()
            pipeline = Part(*run, shown=True)
        try:
            generator.wait()
            print(f"  {generator.lines[-1]}", flush=True)
            told = settled(bootstrap)
        finally:
            pipeline.kill()
        for name, row in told.items():
            seen = {key: row[key] for key in ("batch", "batch_ms", "dropped_by_watermark")}
            print(f"  {name}: {seen}")
        right = compare(bootstrap, json.loads(truth.read_text())["tables"])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
