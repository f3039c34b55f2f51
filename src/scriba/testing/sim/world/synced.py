"""What a power cut cannot take from a partition, read from a simulated volume's files."""

from scriba.errors import ParseError
from scriba.records.batch import check_crc, decode_records, walk

Records = list[tuple[int, bytes]]
"""(offset, value)"""


def synced_records(files: dict[str, bytes], directory: str) -> Records:
    """The records in the longest valid prefix of the segments in a partition's directory."""
    records: Records = []
    for path in sorted(files):
        base = path.removeprefix(f"{directory}/").removesuffix(".log")
        if base.isdecimal() and int(base) == len(records) and not _read(files[path], records):
            break
    return records


def _read(content: bytes, records: Records) -> bool:
    """Adds the records of valid batches; False where the valid ones end before the file does."""
    end = 0
    try:
        for position, header in walk(content):
            if header.base_offset != len(records) or not check_crc(content, position, header):
                return False
            end = position + header.size
            batch = decode_records(content[position:end])
            records += [(record.offset, record.value or b"") for record in batch]
    except ParseError:
        return False
    return end == len(content)
