"""The shop's page in a real browser: what it shows, that it moves, what it survives."""

import json
import urllib.request
from collections.abc import Callable

import pytest

from scriba.client import SyncAdmin
from scriba.pipelines.shop import topics
from scriba.pipelines.shop.events.rules import WATERMARK
from tests.browser.dashboards import Dashboard
from tests.browser.shop_figures import MINUTE, Figures, early_minute, this_minute
from tests.browser.webdriver import Browser
from tools.kafka.brokers import Broker, free_port

Start = Callable[..., Dashboard]


def test_a_shop_without_figures_says_what_it_waits_for(
    cluster: Broker, screen: Browser, start: Start
) -> None:
    page = start(cluster.bootstrap, "--prefix", "nobody-")
    screen.open(page.address)
    screen.until("#badge", "Waiting for figures")
    assert "No sales yet" in screen.text("#sales-empty")
    assert "No product" in screen.text("#top-empty")
    assert "Nobody" in screen.text("#funnel-empty")
    assert "has not reported" in screen.text("#queries-empty")
    assert screen.text("#revenue") == "–"
    assert "topics not there yet" in screen.text("#foot")
    assert screen.complaints() == []


def test_figures_in_the_topics_are_on_the_page(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = this_minute()
    shop.sales(now - 2 * MINUTE, 3, 1_234_500)
    shop.sales(now - MINUTE, 1, 9_999)
    shop.sales(now - MINUTE, 2, 10_000)  # the later record of a key replaces the earlier
    shop.funnel(now - MINUTE, 1_000, 150, 25)
    shop.sessions(now - 2 * MINUTE, 40)
    shop.top({"p0042": 612, "p0007": 153})
    shop.health(now - MINUTE, 1_600, 380, 12, 8)
    shop.dead_letter(815, "not JSON")
    shop.product("p0042", "Desk Lamp")
    shop.progress("figures", 1_480, WATERMARK.total_seconds() + 15.0)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#badge", "^Live$")
    screen.until("#lag", "1,480")
    screen.until("#revenue", "€12,445")
    screen.until("#top", "Desk Lamp")
    screen.until("#funnel", r"2\.5%")
    screen.until("#shares", r"\b8\b")
    screen.until("#letters", "not JSON")
    screen.until("#delay", "15 s")
    assert screen.text("#orders") == "5"
    assert screen.text("#orders-aside") == "€2,489 a basket"
    assert screen.texts("#top li") == ["1\nDesk Lamp\n612", "2\np0007\n153"]
    assert [" ".join(step.split("\n")[1:]) for step in screen.texts("#funnel li")] == [
        "1,000 100%",
        "150 15%",
        "25 2.5%",
    ]
    assert [block.split("\n")[1] for block in screen.texts("#shares > div")] == [
        "1,600",
        "380",
        "12",
        "8",
    ]
    assert "not JSON" in screen.text("#letters")
    assert screen.text("#delay") == "15 s"
    assert "20 min" in screen.text("#delay-aside")
    assert screen.texts("#queries td")[5:7] == ["214", "13 ms"]
    shown = [screen.text(f"#{what}-period") for what in ("revenue", "orders", "events")]
    passed = range((this_minute() - now) // MINUTE + 1)  # the page counts minutes up to now
    assert shown in [[f"last {n + more} minutes" for n in (3, 3, 2)] for more in passed]
    assert screen.complaints() == []


def test_a_pipeline_that_begins_says_how_many_of_its_queries_run(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    shop.sales(this_minute(), 1, 5_000)
    shop.progress("figures", 0, 5.0)
    shop.progress("intake", 0, 5.0, state="starting", batch=-1)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#badge", "^Live · 1 of 2 queries run$")
    screen.until("#pipeline-hint", "^1 of 2 queries run$")
    shop.progress("intake", 0, 5.0, attempts_failed=2, batches_repeated=1)
    shop.producer.flush()
    screen.until("#badge", "^Live$")
    screen.until(
        "#pipeline-hint", "^all 2 queries run · 2 batches begun anew · 1 repeated batch left out$"
    )


def test_minutes_that_are_not_whole_are_lighter_and_the_axis_begins_with_the_figures(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = early_minute(left=20)
    for back in range(8):
        shop.sales(now - back * MINUTE, 1, 5_000)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#orders", "^8$")
    first, *whole, last = screen.run(BARS, 8)
    assert len(set(whole)) == 1
    assert first == last
    assert first < whole[0]


BARS = """
// How opaque the chart is at the foot of each of the bars, if these are the only minutes on it.
const canvas = document.querySelector("#sales-chart canvas");
const plot = document.querySelector("#sales-chart .u-over").getBoundingClientRect();
const all = canvas.getBoundingClientRect();
const [scale, count] = [canvas.width / all.width, arguments[0]];
return Array.from({length: count}, (_, i) => {
  const x = plot.left - all.left + plot.width * (i + 0.5) / count;
  const y = plot.bottom - all.top - 20;
  return canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data[3];
});
"""


def test_the_axis_names_no_minute_twice(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = early_minute(left=20)
    for back in range(5):
        shop.sales(now - back * MINUTE, 1, 5_000)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#orders", "^5$")
    screen.run(WRITTEN)
    screen.click("[data-series=orders]")
    minutes = [text for text in screen.run("return window.written") if ":" in text]
    assert len(minutes) == len(set(minutes)) >= 5


WRITTEN = """
// Keeps what is written when the chart is drawn anew.
const context = document.querySelector("#sales-chart canvas").getContext("2d");
const [write, clear] = [context.fillText, context.clearRect];
window.written = [];
context.clearRect = (...where) => { window.written = []; clear.apply(context, where); };
context.fillText = (...what) => { window.written.push(what[0]); write.apply(context, what); };
"""


def test_numbers_and_charts_move_without_a_reload(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = this_minute()
    for back in range(5):
        shop.sales(now - back * MINUTE, 1, 5_000)
        shop.sessions(now - back * MINUTE, 10)
    shop.top({"p0001": 20, "p0002": 10})
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#orders", "^5$")
    screen.until("#top li:first-child", "p0001")
    screen.run("window.sameVisit = true")
    drawn = screen.run(CANVAS)
    shop.sales(now - MINUTE, 8, 70_000)
    shop.top({"p0002": 30, "p0001": 21})
    shop.producer.flush()
    screen.until("#orders", "^12$")
    screen.until("#top li:first-child", "p0002")
    assert screen.run(CANVAS) != drawn
    assert screen.run("return window.sameVisit") is True


CANVAS = "return document.querySelector('#sales-chart canvas').toDataURL()"


def test_the_chart_shows_orders_when_asked_and_its_figures_as_a_table(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = this_minute()
    shop.sales(now - MINUTE, 4, 80_000)
    shop.sales(now - 3 * MINUTE, 7, 10_050)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#orders", "11")
    revenue = screen.run(CANVAS)
    screen.click("[data-series=orders]")
    assert screen.run(CANVAS) != revenue
    screen.click(".as-table summary")
    screen.until("#sales-table", "€800.00")
    rows = [row.split("\t")[1:3] for row in screen.texts("#sales-table tr")]
    assert rows == [["€800.00", "4"], ["€0.00", "0"], ["€100.50", "7"]]


def test_a_page_asks_nobody_but_its_own_server(screen: Browser, busy: Dashboard) -> None:
    screen.open(busy.address)
    screen.until("#badge", "Live")
    asked = {url for url in screen.requested() if url.startswith(("http", "ws"))}
    assert f"{busy.address}/events" in asked
    assert [url for url in asked if not url.startswith(busy.address)] == []
    blocked = "return fetch('https://example.org/').then(() => 'let out', () => 'kept in')"
    assert screen.run(blocked) == "kept in"


def test_what_a_transaction_took_back_is_never_shown(
    cluster: Broker, screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = this_minute()
    writer = Figures(cluster.bootstrap, shop.names.prefix, transactional_id=shop.names.prefix)
    writer.producer.init_transactions()
    writer.producer.begin_transaction()
    writer.sales(now, 1, 77_700)
    writer.producer.flush()
    shop.health(now, 10, 0, 0, 0)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#events", "10")
    writer.producer.abort_transaction()
    writer.producer.begin_transaction()
    writer.funnel(now, 50, 5, 1)
    writer.producer.commit_transaction()
    screen.until("#funnel", "50")
    assert screen.text("#orders") == "0"
    writer.close()


def test_who_joins_late_gets_the_whole_picture_at_once(screen: Browser, busy: Dashboard) -> None:
    screen.open(busy.address)
    screen.until("#queries", "figures")
    screen.until("#letters", "not JSON")
    with urllib.request.urlopen(f"{busy.address}/events", timeout=300) as stream:
        lines = [stream.readline().decode().strip() for _ in range(2)]
    assert lines[0] == "event: picture"
    told = json.loads(lines[1].removeprefix("data: "))
    assert sum(cents is not None for cents in told["minutes"]["revenue"]) > 30
    assert len(told["top"]["products"]) == 10
    assert [query["query"] for query in told["queries"]] == screen.texts("#queries td:first-child")


def test_figures_without_news_are_called_stale_with_what_can_be_said_of_the_cause(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    now = this_minute()
    long_ago, to_come = (now - 10 * MINUTE) * 1000, (now + 60 * MINUTE) * 1000
    shop.sales(now - 10 * MINUTE, 1, 5_000, long_ago)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#badge", "Stale · 1[0-9] min ago")
    screen.until("#notice", "The pipeline is silent")
    shop.progress("figures", 1_500, 5.0, long_ago)
    shop.producer.flush()
    screen.until("#notice", "stands still while 1,500 records wait")
    shop.progress("figures", 0, 5.0, long_ago)
    shop.producer.flush()
    screen.until("#notice", "no new events")
    shop.sales(now, 2, 9_000, to_come)
    shop.producer.flush()
    screen.until("#badge", "Live")
    assert screen.text("#notice") == ""


def test_a_query_that_starts_again_is_told_with_its_reason(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    shop.sales(this_minute(), 1, 5_000)
    trouble = "the broker went away; it goes on in 4 s"
    shop.progress("figures", 10, 5.0, restarts=3, trouble=trouble, state="restarting")
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#troubles", f"figures starts again: {trouble}")
    assert screen.text("#pipeline-hint") == "0 of 1 queries run · 3 restarts"
    with urllib.request.urlopen(f"{dashboard.address}/health", timeout=300) as answer:
        assert json.load(answer)["queries_in_trouble"] == {"figures": trouble}
    shop.progress("figures", 0, 5.0, restarts=3)
    shop.producer.flush()
    screen.until("#troubles", "^$")


def test_live_figures_grow_stale_while_one_looks_at_them(
    cluster: Broker, screen: Browser, shop: Figures, start: Start
) -> None:
    page = start(cluster.bootstrap, "--prefix", shop.names.prefix, "--stale-after", "3")
    screen.open(page.address)
    while screen.text("#badge") != "Live":
        shop.sales(this_minute(), 1, 5_000)
        shop.producer.flush()
    screen.until("#badge", "Stale")


def test_old_figures_are_shown_with_their_age(
    screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    """As after a weekend without a pipeline: the last hour that there was."""
    then = this_minute() - 48 * 60 * MINUTE
    shop.sales(then, 6, 60_000, at_ms=then * 1000)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#badge", "Stale · 2 days ago")
    assert screen.text("#orders") == "6"


def test_a_restart_of_the_broker_and_then_of_the_dashboard_is_survived(
    own_cluster: Broker, screen: Browser, start: Start
) -> None:
    shop = Figures(own_cluster.bootstrap)
    now = this_minute()
    page = start(own_cluster.bootstrap, "--stale-after", "3600", port=free_port())
    shop.sales(now, 1, 5_000)
    shop.producer.flush()
    screen.open(page.address)
    screen.until("#orders", "^1$")
    screen.run("window.sameVisit = true")

    own_cluster.stop()
    own_cluster.process = None
    screen.until("#badge", "Broker unreachable")
    assert own_cluster.bootstrap in screen.text("#notice")
    assert screen.text("#orders") == "1"
    own_cluster.start()
    shop.sales(now - MINUTE, 3, 9_000)
    shop.producer.flush()
    screen.until("#orders", "^4$")
    screen.until("#badge", "Live")

    page.stop()
    screen.until("#badge", "Not connected")
    shop.sales(now - 2 * MINUTE, 2, 9_000)
    shop.close()
    start(own_cluster.bootstrap, port=page.port)
    screen.until("#orders", "^6$")
    assert screen.run("return window.sameVisit") is True


def test_topics_that_were_made_anew_begin_a_new_picture(
    cluster: Broker, screen: Browser, shop: Figures, dashboard: Dashboard
) -> None:
    shop.sales(this_minute() - MINUTE, 9, 50_000)
    shop.producer.flush()
    screen.open(dashboard.address)
    screen.until("#orders", "^9$")
    with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics([shop.names(topic) for topic in topics.ALL])
    anew = Figures(cluster.bootstrap, shop.names.prefix)
    anew.sales(this_minute() - 2 * MINUTE, 2, 4_000)
    anew.close()
    screen.until("#orders", "^2$")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1320, 390])
def test_everything_fits_and_can_be_read(
    screen: Browser, busy: Dashboard, scheme: str, width: int
) -> None:
    screen.prefer(scheme)
    screen.size(width, 844, phone=width < 500)
    screen.open(busy.address)
    screen.until("#letters", "not JSON")
    screen.until("#queries", "figures")
    assert screen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert screen.run(DARKNESS) == (scheme == "dark")
    assert screen.run(FAINT) == []
    assert screen.run(NAMELESS) == []


DARKNESS = """
const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
return r + g + b < 200;
"""

FAINT = """
// Texts whose contrast with what lies behind them is below 4.5 (WCAG AA).
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const found = rgba(getComputedStyle(e).backgroundColor);
    if (found[3] > 200) return found;
  }
  return [255, 255, 255];
};
const faint = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.closest("noscript, .skip")) continue;
  const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) faint.push(`${e.textContent.trim()}: ${ratio.toFixed(2)}`);
}
return faint;
"""

NAMELESS = """
// Buttons and pictures that a screen reader could not name.
return [...document.querySelectorAll("button, [role=img], [role=region]")]
  .filter(e => !(e.getAttribute("aria-label") || e.innerText.trim()))
  .map(e => e.outerHTML);
"""


def test_colours_can_be_chosen_and_stay_chosen(screen: Browser, busy: Dashboard) -> None:
    screen.open(busy.address)
    screen.click("#theme")
    screen.click("#theme")
    assert screen.run(DARKNESS) is True
    assert "dark" in screen.run("return document.getElementById('theme').ariaLabel")
    screen.open(busy.address)
    assert screen.run(DARKNESS) is True
    screen.run("localStorage.clear()")
