"""Records that hostile, broken and unlucky clients send to the shop: hundreds of them."""

import json
from collections.abc import Iterator
from itertools import count, product
from typing import Any

from scriba.pipelines.shop import topics

VIEW, CART, BUY = topics.INPUTS
ROBOT = "Mozilla/5.0 (compatible; ExampleBot/2.1)"

NUMBERS: tuple[Any, ...] = (
    0, -1, -0.0, 1.0, 1.5, 1e308, 1e-308, True, "1", None, [1], {},
    2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**12, 10**13, 10**400,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "\x00", "\n", "a/b", "\u2028", "\ud800", "\udfff\ud800", "\U0001f6d2" * 256, "x" * 257,
    "x" * 100_000, "é" * 256, '"', "\\", "'; DROP TABLE events", "{}", "null", 7, 7.5, True, None,
    [], {},
)  # fmt: skip
TIMES: tuple[Any, ...] = (
    "", "now", "2026-11-15", "12:00", "2026-11-15T12:34:56", "2026-11-15 12:34:56Z",
    "2026-11-15T12:34:56z", "20261115T123456Z", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z",
    "2026-11-15T24:00:00Z", "2026-11-15T23:59:60Z", "2026-11-15T12:34:56+99:99",
    "2026-11-15T12:34:56.Z", "2026-11-15T12:34:56.1234567890Z", "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "1582-10-10T00:00:00Z",
    "1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59", "+292277026-12-04T15:30:08Z", "-292275055-05-16T16:47:04Z",
    "292277026596-12-04T15:30:08Z", "٢٠٢٦-١١-١٥T12:34:56Z", 0, 1763210000, 1.7e18, 2**63, None,
    [], {},
)  # fmt: skip
ROOM = 200_000


def item(**changes: Any) -> dict[str, Any]:
    return {"product_id": "p1", "quantity": 1, "price_cents": 1, **changes}


Values = Iterator[tuple[str, bytes | None]]


class Nasty:
    """`values`, by topic; good ones, bots and late ones are among them."""

    def __init__(self, time: str, late: str) -> None:
        self._time = time
        self._late = late
        self._numbers = count(1)

    def values(self) -> list[tuple[str, bytes | None]]:
        return [*self._good(), *self._not_events(), *self._fields(), *self._orders()]

    def event(self, topic: str, **changes: Any) -> bytes:
        number = next(self._numbers)
        own = {"event_id": f"n{number}", "order_id": f"o{number}", "event_time": self._time}
        example = topics.CONTRACTS[topic].value
        own = {name: text for name, text in own.items() if name in example}
        return json.dumps({**example, **own, **changes}).encode()

    def _good(self) -> Values:
        for topic in topics.INPUTS:
            yield topic, self.event(topic)
            yield topic, self.event(topic, user_agent=ROBOT)
            yield topic, self.event(topic, event_time=self._late)
            yield topic, b"\t\n " + self.event(topic, event_time=self._late) + b"\r\n"
            yield topic, self.event(topic, event_time=self._late, extra="\ud800} \u2028 \x00")
            yield topic, self.event(topic, event_time=self._late, extra="\x01" * (ROOM // 6))

    def _not_events(self) -> Values:
        good = self.event(VIEW)
        whole = (
            None, b"", b" ", b"null", b"true", b"7", b'"text"', b"[]", b"[{}]", b"{}", b"{", b"}",
            b"NaN",
            b"\xff\xfe", b"\x00" * 100, b"\x01" * ROOM, b"\xff" * ROOM, b'"' * ROOM, b"[" * ROOM,
            b'{"a":' * 40_000, b"x" * 900_000, b"\xe2\x80\xa8" * 300_000, b"9" * 10_000,
            good + b"}", good + b" garbage", good + good, good + b"\n" + good,
            b"\xef\xbb\xbf" + good,
            good.replace(b'"', b"'"), good.replace(b":", b"="), good.replace(b", ", b",,"),
            good[:-1] + b",}", good[:-1] + b', "x": NaN}', good[:-1] + b', "x": -Infinity}',
            good[:-1] + b', "x": 1' + b"0" * 5000 + b"}", good[:-1] + b', "x": 1e99999}',
            good[:-1] + b', "x": 01}', good[:-1] + b', "x": .5}', good[:-1] + b', "x": 0x10}',
            good[:-1] + b', "x": "\\q"}', good[:-1] + b', "x": "\t"}',
            good[:-1] + b', "x": "\xc3\x28"}',
            good[:-1] + b', "x": "\xed\xa0\x80"}', good[:-1] + b', "user_id": "twice"}',
            good[:-1] + b', "x": ' + b"[" * 500 + b"]" * 500 + b"}",
            good[:-1] + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
            b"/* a comment */" + good, good.decode().encode("utf-16"),
            good.decode().encode("utf-32"),
        )  # fmt: skip
        yield from product(topics.INPUTS, whole)

    def _fields(self) -> Values:
        texts = ("event_id", "user_id", "session_id", "product_id", "device", "user_agent")
        for name, text in product(texts, TEXTS):
            yield VIEW, self.event(VIEW, **{name: text})
        for time in TIMES:
            yield VIEW, self.event(VIEW, event_time=time)
        for name, number in product(("quantity", "price_cents"), NUMBERS):
            yield CART, self.event(CART, **{name: number})

    def _orders(self) -> Values:
        items: Any
        for items in (
            None,
            [],
            {},
            "p1",
            [None],
            [[]],
            ["p1"],
            [{}],
            [item()] * 1001,
            [[[item()]]],
        ):
            yield BUY, self.event(BUY, items=items)
        for number in NUMBERS:
            yield BUY, self.event(BUY, items=[item(quantity=number)])
            yield BUY, self.event(BUY, items=[item(price_cents=number)])
            yield BUY, self.event(BUY, total_cents=number)
        for quantity, price in (
            (2, 2**63 - 1),
            (2**31 - 1, 1),
            (10**6, 10**12),
            (1, 10**12),
            (10**6, 10**6),
        ):
            total = quantity * price
            yield (
                BUY,
                self.event(
                    BUY, items=[item(quantity=quantity, price_cents=price)], total_cents=total
                ),
            )
            both = [item(quantity=quantity, price_cents=price), item()]
            yield BUY, self.event(BUY, items=both, total_cents=total + 1)
        yield BUY, self.event(BUY, items=[item(quantity=10**6)] * 1000, total_cents=10**9)
