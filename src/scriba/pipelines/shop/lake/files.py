"""Files of a lake, on any file system that Hadoop knows."""

from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

UNFINISHED: Final = ".unfinished"


class File(NamedTuple):
    address: str
    name: str
    size: int
    is_folder: bool


class Files:
    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._place = jvm.org.apache.hadoop.fs.Path
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._place(path).getFileSystem(hadoop)

    def of(self, folder: str) -> list[File]:
        """What lies in it; nothing where it is not there."""
        place = self._place(folder)
        if not self._files.exists(place):
            return []
        return [
            File(
                status.getPath().toString(),
                status.getPath().getName(),
                status.getLen(),
                status.isDirectory(),
            )
            for status in self._files.listStatus(place)
        ]

    def parquet(self, folder: str) -> list[File]:
        return [file for file in self.of(folder) if file.name.endswith(".parquet")]

    def delete(self, path: str) -> None:
        """With all that is in it; it may be gone already."""
        self._files.delete(self._place(path), True)

    def move(self, path: str, to: str) -> None:
        if not self._files.rename(self._place(path), self._place(to)):
            raise OSError(f"{path} could not be moved to {to}")

    def read(self, path: str) -> bytes:
        stream = self._files.open(self._place(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Under its name there is all of it or nothing."""
        unfinished = path + UNFINISHED
        stream = self._files.create(self._place(unfinished))
        try:
            stream.write(data)
        finally:
            stream.close()
        self.move(unfinished, path)
