"""Events as a shop sees them: people who browse, some who buy, bots, bad networks, broken clients.

A session begins at a random moment and is a walk: look at a product, perhaps put it into the cart,
look at the next, at last perhaps buy. Products are chosen by Zipf's law, so that a few are looked
at all the time. What happened in a session then travels: most events arrive at once, some late,
some very late, some twice, some broken. Everything comes from one seed, so a run can be repeated,
and each delivery says what became of it, so that results can be checked (see `truth`).

Sessions are made in the order of their beginnings, deliveries come in the order of their arrivals;
a heap holds what lies between.
"""

import heapq
import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

from scriba.pipelines.shop.events.checks import NO_TIME
from scriba.pipelines.shop.events.rules import MINUTE_MS, time_name
from scriba.pipelines.shop.simulation.catalogue import product_id
from scriba.pipelines.shop.topics import ADD_TO_CART, PRODUCT_VIEWED, PURCHASE_COMPLETED

HUMAN_EVENTS: Final = 8.0
BOT_EVENTS: Final = 98.0
"""Events of a session on average; two in a hundred sessions then make a fifth of all events."""

WARM_UP_MS: Final = 15 * MINUTE_MS
"""Sessions that began so long before are under way when the stream begins."""

DAY_MS: Final = 24 * 60 * MINUTE_MS

PEOPLE: Final = (
    ("web", "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/142.0 Safari"),
    ("web", "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"),
    ("web", "Mozilla/5.0 (Macintosh; Intel Mac OS X 15_1) AppleWebKit/605.1.15 Safari/605.1"),
    ("mobile", "ShopApp/7.2 (iPhone; iOS 19.1)"),
    ("mobile", "ShopApp/7.1 (Android 16; Pixel 9)"),
)
MACHINES: Final = (
    ("web", "Mozilla/5.0 (compatible; ExampleBot/2.1; +http://example.com/bot)"),
    ("web", "Mozilla/5.0 (X11; Linux x86_64) HeadlessChrome/141.0"),
    ("web", "python-requests/2.32"),
    ("web", "PriceSpider/1.0"),
)


@dataclass(frozen=True)
class Shape:
    """What the stream looks like; shares are of events unless told otherwise."""

    seed: int = 1
    rate: float = 100.0
    """Events a second, over a whole day."""
    swing: float = 0.3
    """How much more there is in the evening, and less in the morning."""
    products: int = 500
    users: int = 5000
    bots: float = 0.02
    """Of sessions."""
    late: float = 0.05
    very_late: float = 0.002
    duplicates: float = 0.01
    broken: float = 0.001


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, before it is written down."""

    time_ms: int
    topic: str
    id: str
    user: str
    session: str
    device: str
    agent: str
    bot: bool
    items: tuple[tuple[str, int, int], ...]
    """Product, quantity and price; one unless it is a purchase."""

    @property
    def order(self) -> str:
        return f"o{self.id}"

    @property
    def units(self) -> int:
        return sum(quantity for _, quantity, _ in self.items)

    @property
    def cents(self) -> int:
        return sum(quantity * price for _, quantity, price in self.items)


class Delivery(NamedTuple):
    arrival_ms: int
    number: int
    """Of the delivery, which makes the order of two at the same moment certain."""
    event: Event
    value: bytes
    copy: bool
    """Whether the same event was delivered before."""
    broken: str
    """The reason for which nobody can read it, or nothing."""


def encode(event: Event) -> bytes:
    """The event as JSON; by hand, as it is ten times as fast."""
    head = (
        f'{{"event_id":"{event.id}","event_time":"{time_name(event.time_ms)}",'
        f'"user_id":"{event.user}","session_id":"{event.session}","device":"{event.device}",'
        f'"user_agent":"{event.agent}"'
    )
    product, quantity, price = event.items[0]
    if event.topic == PRODUCT_VIEWED:
        return f'{head},"product_id":"{product}"}}'.encode()
    if event.topic == ADD_TO_CART:
        tail = f'"product_id":"{product}","quantity":{quantity},"price_cents":{price}'
        return f"{head},{tail}}}".encode()
    items = ",".join(
        f'{{"product_id":"{p}","quantity":{q},"price_cents":{c}}}' for p, q, c in event.items
    )
    tail = f'"order_id":"{event.order}","items":[{items}],"total_cents":{event.cents}'
    return f"{head},{tail}}}".encode()


class Generator:
    """Deliveries of what happens from `start_ms` until `end_ms`, or for ever."""

    def __init__(self, shape: Shape, start_ms: int, end_ms: int | None = None) -> None:
        self.shape = shape
        self.start_ms = start_ms
        self.end_ms = end_ms
        self._random = Random(shape.seed)
        weights = accumulate(1 / rank**1.1 for rank in range(1, shape.products + 1))
        self._weights = list(weights)
        self._prices = [
            max(99, round(self._random.lognormvariate(math.log(2500), 0.8)))
            for _ in range(shape.products)
        ]
        self._number = 0

    def deliveries(self) -> Iterator[Delivery]:
        """In the order of arrival. Events from before the start or after the end are left out."""
        waiting: list[Delivery] = []
        for began in self._beginnings():
            while waiting and waiting[0].arrival_ms < began:
                yield heapq.heappop(waiting)
            for event in self._session(began):
                if event.time_ms >= self.start_ms and not self._over(event.time_ms):
                    for delivery in self._deliver(event):
                        heapq.heappush(waiting, delivery)
        while waiting:
            yield heapq.heappop(waiting)

    def _over(self, time_ms: int) -> bool:
        return self.end_ms is not None and time_ms >= self.end_ms

    # -- what happens ------------------------------------------------------------------------------

    def _beginnings(self) -> Iterator[int]:
        """When sessions begin: at random, more of them in the evening."""
        shape, random = self.shape, self._random
        each = (1 - shape.bots) * HUMAN_EVENTS + shape.bots * BOT_EVENTS
        most = shape.rate / each * (1 + shape.swing) / 1000
        now = float(self.start_ms - WARM_UP_MS)
        while True:
            now += random.expovariate(most)
            if self._over(int(now)):
                return
            busy = 1 - shape.swing * math.cos(2 * math.pi * (now / DAY_MS - 0.2))
            if random.random() * (1 + shape.swing) < busy:
                yield int(now)

    def _session(self, began: int) -> list[Event]:
        random, shape = self._random, self.shape
        session = f"s{random.getrandbits(48):012x}"
        if random.random() < shape.bots:
            user = f"u{shape.users + random.randrange(max(1, shape.users // 50)):05}"
            return self._crawl(began, user, session, random.choice(MACHINES))
        user = f"u{random.randrange(shape.users):05}"
        return self._walk(began, user, session, random.choice(PEOPLE))

    def _walk(self, now: int, user: str, session: str, client: tuple[str, str]) -> list[Event]:
        random, events = self._random, list[Event]()
        cart: dict[int, int] = {}
        seen: list[int] = []

        def happens(topic: str, bought: dict[int, int]) -> None:
            items = tuple((product_id(p), q, self._prices[p]) for p, q in bought.items())
            name = f"{random.getrandbits(64):016x}"
            events.append(Event(now, topic, name, user, session, *client, False, items))

        for _ in range(1 + int(random.expovariate(1 / 5.6))):
            product = random.choice(seen) if seen and random.random() < 0.2 else self._product()
            seen.append(product)
            happens(PRODUCT_VIEWED, {product: 1})
            now += min(300_000, max(1000, int(random.lognormvariate(math.log(15_000), 0.8))))
            if random.random() < 0.18:
                quantity = 1 if random.random() < 0.8 else random.randint(2, 4)
                cart[product] = cart.get(product, 0) + quantity
                happens(ADD_TO_CART, {product: quantity})
                now += random.randint(1000, 15_000)
        if cart and random.random() < 0.4:
            now += random.randint(20_000, 120_000)
            happens(PURCHASE_COMPLETED, cart)
        return events

    def _crawl(self, now: int, user: str, session: str, client: tuple[str, str]) -> list[Event]:
        """A machine that looks at one product after the other, faster than anybody reads."""
        random, events = self._random, []
        product = random.randrange(self.shape.products)
        for _ in range(random.randint(int(BOT_EVENTS * 0.4), int(BOT_EVENTS * 1.6))):
            product = (product + 1) % self.shape.products
            item = (product_id(product), 1, self._prices[product])
            name = f"{random.getrandbits(64):016x}"
            events.append(Event(now, PRODUCT_VIEWED, name, user, session, *client, True, (item,)))
            now += random.randint(100, 1000)
        return events

    def _product(self) -> int:
        return bisect(self._weights, self._random.random() * self._weights[-1])

    # -- how it arrives ----------------------------------------------------------------------------

    def _deliver(self, event: Event) -> Iterator[Delivery]:
        random, shape = self._random, self.shape
        chance, arrival = random.random(), event.time_ms + random.randint(20, 400)
        if chance < shape.very_late:
            arrival = event.time_ms + random.randint(11 * MINUTE_MS, 60 * MINUTE_MS)
        elif chance < shape.very_late + shape.late:
            arrival = event.time_ms + random.randint(10_000, 5 * MINUTE_MS)
        if random.random() < shape.broken:
            value, reason = self._damage(event)
            yield self._delivery(arrival, event, value, False, reason)
            return
        value = encode(event)
        yield self._delivery(arrival, event, value, False, "")
        if random.random() < shape.duplicates:
            again = arrival + random.randint(100, 20_000)
            yield self._delivery(again, event, value, True, "")

    def _delivery(
        self, arrival: int, event: Event, value: bytes, copy: bool, broken: str
    ) -> Delivery:
        self._number += 1
        return Delivery(arrival, self._number, event, value, copy, broken)

    def _damage(self, event: Event) -> tuple[bytes, str]:
        """One of the ways in which clients get it wrong, with what will be said of it."""
        value = encode(event)
        how = self._random.randrange(5)
        if how == 0:
            return value[: len(value) * 2 // 3], "not JSON"
        if how == 1:
            return value.replace(b'"user_id"', b'"user"', 1), "user_id is missing"
        if how == 2:
            return value.replace(b'"event_id":"', b'"event_id":["', 1), "not JSON"
        if how == 3:
            time = time_name(event.time_ms).encode()
            return value.replace(time, b"yesterday", 1), f"event_time {NO_TIME}"
        ahead = time_name(event.time_ms + DAY_MS).encode()
        time = time_name(event.time_ms).encode()
        return value.replace(time, ahead, 1), "event_time lies in the future"
