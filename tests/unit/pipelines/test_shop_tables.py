"""What drivers keep beside Spark: the ranking of products and the tally of the intake."""

from random import Random

from scriba.pipelines.shop.events.rules import HOUR_MS, MINUTE_MS, minute_name
from scriba.pipelines.shop.streaming.ranking import Ranking
from scriba.pipelines.shop.streaming.tally import Tally
from scriba.pipelines.shop.topics import LATEST

HOUR = 498_000 * HOUR_MS


def test_products_are_ranked_by_views_then_by_name() -> None:
    ranking = Ranking()
    for product, views in (("p2", 3), ("p1", 3), ("p3", 9)):
        ranking.put(HOUR, product, views)
    (key, hour), (latest, now) = ranking.changed()
    assert (key, latest) == (minute_name(HOUR), LATEST)
    assert [row["product_id"] for row in hour["products"]] == ["p3", "p1", "p2"]
    assert now["window_end"] == minute_name(HOUR + MINUTE_MS)
    assert list(ranking.changed()) == []


def test_a_count_replaces_the_one_before() -> None:
    ranking = Ranking()
    for views in (1, 5, 5):
        ranking.put(HOUR, "p1", views)
    ranking.put(HOUR + MINUTE_MS, "p1", 2)
    found = dict(ranking.changed())
    assert found[LATEST]["products"] == [{"product_id": "p1", "views": 7}]


def test_the_last_hour_slides_over_the_full_one() -> None:
    ranking = Ranking()
    ranking.put(HOUR, "old", 9)
    ranking.put(HOUR + 30 * MINUTE_MS, "p1", 1)
    ranking.put(HOUR + 75 * MINUTE_MS, "p2", 2)
    found = dict(ranking.changed())
    assert found.keys() == {minute_name(HOUR), minute_name(HOUR + HOUR_MS), LATEST}
    assert [row["product_id"] for row in found[LATEST]["products"]] == ["p2", "p1"]


def test_a_restored_ranking_goes_on_where_the_other_ended() -> None:
    chance = Random(5)
    counts = [
        (HOUR + chance.randrange(60) * MINUTE_MS, f"p{chance.randrange(30)}", chance.randrange(99))
        for _ in range(500)
    ]
    whole, first, second = Ranking(), Ranking(), Ranking()
    for count in counts:
        whole.put(*count)
    for count in counts[:300]:
        first.put(*count)
        second.put(*count)
    second.restored()
    for count in counts[300:]:
        second.put(*count)
    assert list(second.changed()) == list(whole.changed())


def test_a_batch_counts_when_it_was_committed_and_only_then() -> None:
    tally = Tally("q")
    batch = {(HOUR, "accepted"): 3, (HOUR, "bots"): 1}
    (row,) = tally.with_batch(batch)
    assert (row["events"], row["accepted"], row["bots"], row["late"]) == (4, 3, 1, 0)
    assert list(tally.with_batch(batch)) == [row]
    tally.add(batch)
    (again,) = tally.with_batch({(HOUR, "late"): 1})
    assert (again["events"], again["late"]) == (5, 1)


def test_a_restored_tally_leaves_out_what_another_query_counted() -> None:
    tally, other = Tally("q"), Tally("lost")
    (mine,) = tally.with_batch({(HOUR, "accepted"): 3})
    (theirs,) = other.with_batch({(HOUR + MINUTE_MS, "accepted"): 7})
    restored = Tally("q")
    restored.restore([mine, theirs])
    rows = restored.with_batch({(HOUR, "bots"): 1, (HOUR + MINUTE_MS, "bots"): 1})
    assert [row["events"] for row in rows] == [4, 1]
