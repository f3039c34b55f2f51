"""A driver that dies: copies one topic into another, and kills itself with everything it started.

    python crash_driver.py BOOTSTRAP SOURCE TARGET CHECKPOINT STEP BATCH JAVA-OPTIONS

It must lead a process group of its own, since that is what it kills: itself, its JVM and the
workers, all at once, before the step of the sink that is named, in the first batch or a later one.
Tasks write the first, and the driver those after it.
"""

import os
import signal
import sys
from collections import Counter

from scriba.spark import ExactlyOnceSink, session


def main(
    bootstrap: str, source: str, target: str, checkpoint: str, fatal: str, batch: str, java: str
) -> None:
    steps = Counter[str]()

    def watch(step: str) -> None:
        steps[step] += 1
        if step == fatal and steps[step] == int(batch):
            os.killpg(0, signal.SIGKILL)

    broker = {"kafka.bootstrap.servers": bootstrap}
    config = {"spark.driver.extraJavaOptions": java, "spark.driver.memory": "512m"}
    spark = session("crash", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("scriba")
        .options(**broker, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="50")
        .load()
    )
    sink = ExactlyOnceSink({**broker, "topic": target}, watch=watch)
    stream = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
