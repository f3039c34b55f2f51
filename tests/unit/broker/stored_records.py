"""What a replica has on its disk, read as a fetch reads it."""

from scriba.broker.partitions.partition import Partition
from scriba.records.batch import Record, decode_records, walk
from scriba.storage.log import NotResident, Slice


async def stored_records(partition: Partition) -> list[Record]:
    log = partition.log
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        while isinstance(read := log.read(offset, 1 << 20, log.end_offset), NotResident):
            await read.file.load(read.position, read.size)
        assert isinstance(read, Slice)
        view = memoryview(bytearray(read.size))
        read.file.pread_into(view, read.position)
        for position, header in walk(view):
            found += decode_records(view[position:])
            offset = header.next_offset
    return found
