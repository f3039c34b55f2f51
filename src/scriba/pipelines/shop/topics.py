"""The topics of the shop: the contract between those who write and those who read.

Clients write events to three topics, keyed by `user_id`:

    product_viewed        a product page was looked at
    add_to_cart           a product was put into the cart
    purchase_completed    an order was paid

The pipeline writes figures to compacted topics. A key names what the figure is about, a later
record with the same key replaces the earlier one, so a reader keeps a table by key and is right at
any time. Read them with `read_committed`. Windows are named by their start, in UTC.

    topic                 key                          a record says
    sales_per_minute      window start                 sales of one minute
    sales_sliding         window start                 sales of five minutes, one window a minute
    funnel                window start                 views, carts and purchases of one minute
    active_sessions       window start                 sessions with an event in that minute
    product_views         window start/product         views of a product in one minute
    top_viewed_products   `latest`, or an hour's start the ten most viewed products, exactly
    user_sessions         user/start                   a session that has ended
    joined_purchases      order/product/view           a bought product with a view that led to it
    shop_health           arrival minute               events taken, bots, late, dead letters
    shop_progress         query                        watermark delay, lag, speed, trouble
    shop_late_events      source topic-partition-offset  an event that came too late to count
    shop_dead_letters     source topic-partition-offset  an event that nobody can read, and why
    shop_products         product                      what a product is called; written by the shop

Times in values are ISO 8601 in UTC; money is in cents, so that sums are exact.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

PRODUCT_VIEWED: Final = "product_viewed"
ADD_TO_CART: Final = "add_to_cart"
PURCHASE_COMPLETED: Final = "purchase_completed"
INPUTS: Final = (PRODUCT_VIEWED, ADD_TO_CART, PURCHASE_COMPLETED)

SALES_PER_MINUTE: Final = "sales_per_minute"
SALES_SLIDING: Final = "sales_sliding"
FUNNEL: Final = "funnel"
ACTIVE_SESSIONS: Final = "active_sessions"
PRODUCT_VIEWS: Final = "product_views"
TOP_VIEWED_PRODUCTS: Final = "top_viewed_products"
USER_SESSIONS: Final = "user_sessions"
JOINED_PURCHASES: Final = "joined_purchases"
HEALTH: Final = "shop_health"
PROGRESS: Final = "shop_progress"
LATE_EVENTS: Final = "shop_late_events"
DEAD_LETTERS: Final = "shop_dead_letters"

PRODUCTS: Final = "shop_products"
"""Written by whoever keeps the shop's products, read by the page; without it, ids are shown."""

AGGREGATES: Final = (
    SALES_PER_MINUTE,
    SALES_SLIDING,
    FUNNEL,
    ACTIVE_SESSIONS,
    PRODUCT_VIEWS,
    TOP_VIEWED_PRODUCTS,
    USER_SESSIONS,
    JOINED_PURCHASES,
    HEALTH,
    PROGRESS,
)
REJECTED: Final = (LATE_EVENTS, DEAD_LETTERS)
ALL: Final = (*INPUTS, *AGGREGATES, *REJECTED, PRODUCTS)

QUERIES: Final = ("figures", "intake", "sessions", "joined")
"""What writes them, in the order in which somebody who looks at the page misses it."""

STARTING: Final = "starting"
RUNNING: Final = "running"
RESTARTING: Final = "restarting"
"""States of a query in shop_progress."""

LATEST: Final = "latest"
"""The key in top_viewed_products of the hour that ends with the newest minute."""


# -- what clients send ---------------------------------------------------------------------------


class Viewed(TypedDict):
    event_id: str
    """Chosen by the client; the same event sent twice carries the same one."""
    event_time: str
    user_id: str
    session_id: str
    product_id: str
    user_agent: NotRequired[str]
    device: NotRequired[Literal["web", "mobile"]]


class Carted(Viewed):
    quantity: int
    price_cents: int


class Item(TypedDict):
    product_id: str
    quantity: int
    price_cents: int


class Purchased(TypedDict):
    event_id: str
    event_time: str
    user_id: str
    session_id: str
    order_id: str
    items: list[Item]
    total_cents: int
    """The sum over the items of quantity times price."""
    user_agent: NotRequired[str]
    device: NotRequired[Literal["web", "mobile"]]


class Product(TypedDict):
    product_id: str
    name: str


# -- what the pipeline says ----------------------------------------------------------------------


class Sales(TypedDict):
    window_start: str
    window_end: str
    orders: int
    units: int
    revenue_cents: int


class Funnel(TypedDict):
    window_start: str
    window_end: str
    views: int
    carts: int
    purchases: int


class ActiveSessions(TypedDict):
    window_start: str
    window_end: str
    sessions: int


class ProductViews(TypedDict):
    window_start: str
    window_end: str
    product_id: str
    views: int


class Ranked(TypedDict):
    product_id: str
    views: int


class TopProducts(TypedDict):
    window_start: str
    window_end: str
    products: list[Ranked]
    """Most viewed first; with equal views by product_id."""


class UserSession(TypedDict):
    user_id: str
    started: str
    ended: str
    """When its last event happened."""
    views: int
    carts: int
    purchases: int
    revenue_cents: int


class JoinedPurchase(TypedDict):
    order_id: str
    user_id: str
    product_id: str
    purchased: str
    quantity: int
    price_cents: int
    view_id: str | None
    """None when the buyer had not looked at the product in the hour before."""
    viewed: str | None
    seconds: float | None
    """From the view to the purchase."""


class Health(TypedDict):
    minute: str
    """In which the events arrived."""
    events: int
    """All of them; the others below add up to it."""
    accepted: int
    bots: int
    late: int
    dead_letters: int
    query: str
    """Spark's id of the query that counted."""


class Progress(TypedDict):
    query: str
    updated: str
    state: str
    """starting: has not had a batch in this run; running; restarting: failed, see `trouble`."""
    batch: int
    """-1 before the first."""
    batch_ms: int
    rows_per_second: float
    """Read by the last micro-batch."""
    watermark: str | None
    watermark_delay_seconds: float | None
    """How far the watermark lies behind the clock."""
    lag: int | None
    """Records that wait to be read."""
    dropped_by_watermark: int
    """Rows that Spark left out of its state since the query started; nothing else counts them."""
    restarts: int
    """How often the query failed and went on from its checkpoint since the run began."""
    trouble: str | None
    """Why it stands still, until it has had a batch again."""
    rows_written: int | None
    """By the last micro-batch; None where no exactly-once sink tells."""
    transaction_ms: float | None
    """How long the transaction of the last micro-batch took."""
    attempts_failed: int
    """How often a batch was begun anew since the run began, as tasks of it had failed."""
    batches_repeated: int
    """Batches that were left out since the run began, as they had been committed before."""


class LateEvent(TypedDict):
    topic: str
    partition: int
    offset: int
    arrived: str
    seconds: float
    """How long after it happened it arrived."""
    event: dict[str, Any]
    """As it was sent."""


class DeadLetter(TypedDict):
    topic: str
    partition: int
    offset: int
    arrived: str
    reason: str
    value: str | None
    """As it was sent; bytes that are no text are replaced."""


# -- examples, one for each topic ------------------------------------------------------------------


@dataclass(frozen=True)
class Contract:
    """What a topic holds: the type of its values, and one record to build against."""

    schema: Any
    key: str
    value: Mapping[str, Any]


_AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0"
_COMMON = {
    "event_id": "6f0c1a52b3d94e77",
    "event_time": "2026-11-15T12:34:56.789Z",
    "user_id": "u00042",
    "session_id": "s5d1b0c9a",
    "device": "web",
    "user_agent": _AGENT,
}
_MINUTE = {"window_start": "2026-11-15T12:34:00Z", "window_end": "2026-11-15T12:35:00Z"}
_HOUR = {"window_start": "2026-11-15T11:35:00Z", "window_end": "2026-11-15T12:35:00Z"}
_SALE = {"orders": 3, "units": 5, "revenue_cents": 12_995}
_PLACE = {"topic": PRODUCT_VIEWED, "partition": 1, "offset": 815}

_JOINED = {
    "order_id": "o6f0c1a52",
    "user_id": "u00042",
    "product_id": "p0007",
    "purchased": "2026-11-15T12:34:56.789Z",
    "quantity": 1,
    "price_cents": 1999,
    "view_id": "6f0c1a52b3d94e70",
    "viewed": "2026-11-15T12:31:26.789Z",
    "seconds": 210.0,
}
_PROGRESS = {
    "query": "figures",
    "updated": "2026-11-15T12:35:01.002Z",
    "state": "running",
    "batch": 17,
    "batch_ms": 640,
    "rows_per_second": 203.5,
    "watermark": "2026-11-15T12:14:58.120Z",
    "watermark_delay_seconds": 1202.9,
    "lag": 12,
    "dropped_by_watermark": 0,
    "restarts": 1,
    "trouble": None,
    "rows_written": 214,
    "transaction_ms": 12.5,
    "attempts_failed": 0,
    "batches_repeated": 0,
}

CONTRACTS: Final[Mapping[str, Contract]] = {
    PRODUCT_VIEWED: Contract(Viewed, "u00042", {**_COMMON, "product_id": "p0007"}),
    ADD_TO_CART: Contract(
        Carted,
        "u00042",
        {**_COMMON, "product_id": "p0007", "quantity": 1, "price_cents": 1999},
    ),
    PURCHASE_COMPLETED: Contract(
        Purchased,
        "u00042",
        {
            **_COMMON,
            "order_id": "o6f0c1a52",
            "items": [{"product_id": "p0007", "quantity": 1, "price_cents": 1999}],
            "total_cents": 1999,
        },
    ),
    SALES_PER_MINUTE: Contract(Sales, "2026-11-15T12:34:00Z", {**_MINUTE, **_SALE}),
    SALES_SLIDING: Contract(
        Sales,
        "2026-11-15T12:30:00Z",
        {"window_start": "2026-11-15T12:30:00Z", "window_end": _MINUTE["window_end"], **_SALE},
    ),
    FUNNEL: Contract(
        Funnel, "2026-11-15T12:34:00Z", {**_MINUTE, "views": 190, "carts": 31, "purchases": 3}
    ),
    ACTIVE_SESSIONS: Contract(ActiveSessions, "2026-11-15T12:34:00Z", {**_MINUTE, "sessions": 44}),
    PRODUCT_VIEWS: Contract(
        ProductViews,
        "2026-11-15T12:34:00Z/p0007",
        {**_MINUTE, "product_id": "p0007", "views": 12},
    ),
    TOP_VIEWED_PRODUCTS: Contract(
        TopProducts,
        LATEST,
        {**_HOUR, "products": [{"product_id": "p0001", "views": 612}]},
    ),
    USER_SESSIONS: Contract(
        UserSession,
        "u00042/2026-11-15T12:20:11.500Z",
        {
            "user_id": "u00042",
            "started": "2026-11-15T12:20:11.500Z",
            "ended": "2026-11-15T12:34:56.789Z",
            "views": 7,
            "carts": 2,
            "purchases": 1,
            "revenue_cents": 1999,
        },
    ),
    JOINED_PURCHASES: Contract(JoinedPurchase, "o6f0c1a52/p0007/6f0c1a52b3d94e70", _JOINED),
    HEALTH: Contract(
        Health,
        "2026-11-15T12:34:00Z",
        {
            "minute": "2026-11-15T12:34:00Z",
            "events": 280,
            "accepted": 224,
            "bots": 54,
            "late": 1,
            "dead_letters": 1,
            "query": "6b1b4b7c-58b7-4c5e-9d3f-0c2f6e0a7f11",
        },
    ),
    PROGRESS: Contract(Progress, "figures", _PROGRESS),
    LATE_EVENTS: Contract(
        LateEvent,
        "product_viewed-1-815",
        {
            **_PLACE,
            "arrived": "2026-11-15T12:50:00.000Z",
            "seconds": 903.2,
            "event": {**_COMMON, "product_id": "p0007"},
        },
    ),
    DEAD_LETTERS: Contract(
        DeadLetter,
        "product_viewed-1-815",
        {
            **_PLACE,
            "arrived": "2026-11-15T12:34:57.000Z",
            "reason": "not JSON",
            "value": '{"event_id": "6f0c1a52b3',
        },
    ),
    PRODUCTS: Contract(Product, "p0007", {"product_id": "p0007", "name": "Cedar Blanket"}),
}


# -- names and settings ----------------------------------------------------------------------------

DAY_MS: Final = 24 * 60 * 60 * 1000

EVENT_SETTINGS: Final[Mapping[str, str]] = {
    "retention.ms": str(30 * DAY_MS),
    "message.timestamp.type": "LogAppendTime",
}
"""The broker's clock says when an event arrived: see `clocks`."""

FIGURE_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(30 * DAY_MS),
    "min.cleanable.dirty.ratio": "0.2",
    "segment.ms": str(60 * 60 * 1000),
    "max.compaction.lag.ms": str(DAY_MS),
}
"""Windows do not come back, so that a figure goes at last, as its events do; an active segment is
never compacted, so segments are closed each hour."""


PRODUCT_SETTINGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class NewShopTopic:
    name: str
    partitions: int
    configs: Mapping[str, str]


class Names:
    """Topics by their plain names, with a prefix when several shops share a cluster."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def __call__(self, topic: str) -> str:
        return self.prefix + topic

    def all(self, topics: Iterable[str]) -> list[str]:
        return [self(topic) for topic in topics]

    def plain(self, name: str) -> str:
        return name.removeprefix(self.prefix)


def wanted(names: Names, partitions: int) -> list[NewShopTopic]:
    """All topics of a shop. Figures are few, so that one partition holds them in their order."""
    events = [NewShopTopic(names(topic), partitions, EVENT_SETTINGS) for topic in INPUTS]
    figures = [NewShopTopic(names(t), 1, FIGURE_SETTINGS) for t in (*AGGREGATES, *REJECTED)]
    return [*events, *figures, NewShopTopic(names(PRODUCTS), 1, PRODUCT_SETTINGS)]


def create(bootstrap: str, names: Names, *, partitions: int = 2, replicas: int = -1) -> list[str]:
    """Creates the topics that are missing, and names them; -1 leaves replicas to the broker."""
    from scriba.client import NewTopic, PartlyFailed, SyncAdmin
    from scriba.errors import ErrorCode

    topics = wanted(names, partitions)
    with SyncAdmin(bootstrap_servers=bootstrap) as admin:
        there = {listing.name for listing in admin.list_topics()}
        missing = [topic for topic in topics if topic.name not in there]
        new = [NewTopic(t.name, t.partitions, replicas, dict(t.configs)) for t in missing]
        try:
            admin.create_topics(new)
        except PartlyFailed as failed:
            codes = {error.code for error in failed.errors.values()}
            if codes != {ErrorCode.TOPIC_ALREADY_EXISTS}:
                raise  # somebody else who was quicker is no trouble, anything else is
    return [topic.name for topic in missing]
