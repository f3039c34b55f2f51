"""What a group remembers of its topics: one number, and the same one that Kafka 4.3 computes.

A group whose stored hash is another than that of its topics now must share them out anew. Topics
are hashed by id, name, number of partitions and the racks of every partition, with XXH3 (64 bits,
no seed); then the hashes of the subscribed topics that exist, in the order of their names, are
hashed again. Since the number is Kafka's, a group that moves here from there does not rebalance.
"""

from collections.abc import Generator, Iterable
from functools import lru_cache
from struct import Struct, pack
from typing import Final

from scriba.groups.facts import TopicFacts, Topics
from scriba.outcome import at_once

_MASK: Final = (1 << 64) - 1
_LOW: Final = (1 << 32) - 1

_PRIME32_1: Final = 0x9E3779B1
_PRIME32_2: Final = 0x85EBCA77
_PRIME32_3: Final = 0xC2B2AE3D
_PRIME64_1: Final = 0x9E3779B185EBCA87
_PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME64_3: Final = 0x165667B19E3779F9
_PRIME64_4: Final = 0x85EBCA77C2B2AE63
_PRIME64_5: Final = 0x27D4EB2F165667C5
_PRIME_MX1: Final = 0x165667919E3779F9
_PRIME_MX2: Final = 0x9FB21C651E98DF25

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE: Final = 64
_STRIPES_PER_BLOCK: Final = (len(_SECRET) - _STRIPE) // 8

AT_ONCE: Final = 250
"""Topics that are hashed in one go: some milliseconds."""

REMEMBERED: Final = 1 << 15
"""Topics whose hashes are kept: each member that joins has all those of its group hashed."""

_int = Struct("<i").pack
_eight = Struct("<8Q").unpack_from


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A signed 64-bit number; 0 where none of the topics exists."""
    return at_once(hashing(names, topics))


def hashing(names: Iterable[str], topics: Topics) -> Generator[None, None, int]:
    """As `metadata_hash`, in slices: there may be tens of thousands of topics."""
    hashes: list[int] = []
    for count, name in enumerate(sorted(names), 1):
        topic = topics.get(name)
        if topic is not None:
            hashes.append(_topic_hash(topic))
        if count % AT_ONCE == 0:
            yield
    return _signed(xxh3(pack(f"<{len(hashes)}Q", *hashes))) if hashes else 0


@lru_cache(maxsize=REMEMBERED)
def _topic_hash(topic: TopicFacts) -> int:
    parts = [b"\0", topic.id[7::-1], topic.id[:7:-1], _text(topic.name), _int(topic.partitions)]
    for partition in range(topic.partitions):
        parts.append(_int(partition))
        racks = topic.racks[partition] if partition < len(topic.racks) else ()
        parts += [_int(_units(rack)) + _text(rack) for rack in sorted(racks)]
    return xxh3(b"".join(parts))


def _text(text: str) -> bytes:
    return text.encode("utf-16-le") + _int(_units(text))


def _units(text: str) -> int:
    """Its length as Java counts it."""
    return len(text.encode("utf-16-le")) // 2


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def xxh3(data: bytes) -> int:
    size = len(data)
    if size <= 16:
        return _upto_16(data, size)
    if size <= 240:
        return _upto_240(data, size)
    return _long(data, size)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _half(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _PRIME_MX1 & _MASK
    return value ^ (value >> 32)


def _avalanche64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _MASK
    value ^= value >> 29
    value = value * _PRIME64_3 & _MASK
    return value ^ (value >> 32)


def _upto_16(data: bytes, size: int) -> int:
    if size > 8:
        low = _word(data, 0) ^ _word(_SECRET, 24) ^ _word(_SECRET, 32)
        high = _word(data, size - 8) ^ _word(_SECRET, 40) ^ _word(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((size + swapped + high + _fold(low, high)) & _MASK)
    if size >= 4:
        both = _half(data, size - 4) + (_half(data, 0) << 32)
        keyed = both ^ _word(_SECRET, 8) ^ _word(_SECRET, 16)
        keyed ^= _turn(keyed, 49) ^ _turn(keyed, 24)
        keyed = keyed * _PRIME_MX2 & _MASK
        keyed ^= (keyed >> 35) + size
        keyed = keyed * _PRIME_MX2 & _MASK
        return keyed ^ (keyed >> 28)
    if size:
        few = data[0] << 16 | data[size >> 1] << 24 | data[size - 1] | size << 8
        return _avalanche64(few ^ _half(_SECRET, 0) ^ _half(_SECRET, 4))
    return _avalanche64(_word(_SECRET, 56) ^ _word(_SECRET, 64))


def _turn(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _mix16(data: bytes, at: int, secret: int) -> int:
    return _fold(
        _word(data, at) ^ _word(_SECRET, secret), _word(data, at + 8) ^ _word(_SECRET, secret + 8)
    )


def _upto_240(data: bytes, size: int) -> int:
    total = size * _PRIME64_1
    if size <= 128:
        for pair in range((size - 1) // 32 + 1):
            total += _mix16(data, 16 * pair, 32 * pair)
            total += _mix16(data, size - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche(total & _MASK)
    for at in range(8):
        total += _mix16(data, 16 * at, 16 * at)
    total = _avalanche(total & _MASK)
    for at in range(8, size // 16):
        total += _mix16(data, 16 * at, 16 * (at - 8) + 3)
    total += _mix16(data, size - 16, 136 - 17)
    return _avalanche(total & _MASK)


def _long(data: bytes, size: int) -> int:
    lanes = [
        *(_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3),
        *(_PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1),
    ]
    block = _STRIPE * _STRIPES_PER_BLOCK
    for start in range(0, size - 1, block):
        full = start + block < size
        stripes = _STRIPES_PER_BLOCK if full else (size - 1 - start) // _STRIPE
        for stripe in range(stripes):
            _accumulate(lanes, data, start + _STRIPE * stripe, 8 * stripe)
        if full:
            keys = _eight(_SECRET, len(_SECRET) - _STRIPE)
            for lane, key in enumerate(keys):
                value = lanes[lane]
                lanes[lane] = (value ^ (value >> 47) ^ key) * _PRIME32_1 & _MASK
    _accumulate(lanes, data, size - _STRIPE, len(_SECRET) - _STRIPE - 7)
    total = size * _PRIME64_1
    keys = _eight(_SECRET, 11)
    for pair in range(0, 8, 2):
        total += _fold(lanes[pair] ^ keys[pair], lanes[pair + 1] ^ keys[pair + 1])
    return _avalanche(total & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret: int) -> None:
    for lane, (word, key) in enumerate(zip(_eight(data, at), _eight(_SECRET, secret), strict=True)):
        keyed = word ^ key
        lanes[lane ^ 1] = (lanes[lane ^ 1] + word) & _MASK
        lanes[lane] = (lanes[lane] + (keyed & _LOW) * (keyed >> 32)) & _MASK
