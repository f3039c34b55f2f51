"""The controller moves replicas by itself: why, how many at once, and what stops it."""

from typing import Any

import pytest

from scriba.config import ConfigError
from scriba.controller.partitions.balance_runs import runs_of
from scriba.controller.partitions.balancing import WAVE
from scriba.settings import NodeSettings
from scriba.settings.balance_runs import NAME, Run, read_runs, unknown_run
from tests.unit.controller.rig import DELETE, SET, Cluster, alter, change, reassign

GONE_MS = 60_000


def cluster(partitions: int = 24, **settings: Any) -> Cluster:
    given = {
        "scriba_balance_auto": "true",
        "scriba_balance_gone_ms": str(GONE_MS),
        "auto_leader_rebalance_enable": "false",
        **settings,
    }
    made = Cluster(**given).with_brokers(1, 2, 3)
    made.create(
        "t", -1, -1, assignments={n: [n % 3 + 1, (n + 1) % 3 + 1] for n in range(partitions)}
    )
    return made


def join(made: Cluster, broker: int) -> None:
    made.register(broker)
    made.beat(broker)


def look(made: Cluster) -> list[Any]:
    """One pass, as the node makes it."""
    balancer = made.controller.balancer
    for _ in balancer.planning() or ():
        pass
    return made.append(balancer.step(made.now))


def moving(made: Cluster) -> list[int]:
    partitions = made.image.topics_by_name["t"].partitions
    return [index for index, each in partitions.items() if each.is_reassigning]


def catch_up(made: Cluster) -> None:
    """Whoever is being added is in sync now."""
    for index in moving(made):
        partition = made.partition("t", index)
        alter(
            made,
            [*partition.isr, *(b for b in partition.adding_replicas if b not in partition.isr)],
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            index=index,
        )


def run(made: Cluster) -> list[int]:
    """Passes until nothing is left to do; how many moved in each wave."""
    waves = []
    for _ in range(100):
        look(made)
        if moving(made):
            waves.append(len(moving(made)))
            catch_up(made)
        elif not made.controller.balancer.running:
            return waves
    raise AssertionError("it does not end")


def held(made: Cluster) -> dict[int, int]:
    counts = dict.fromkeys(made.image.brokers, 0)
    for each in made.image.topics_by_name["t"].partitions.values():
        for broker in each.replicas:
            counts[broker] += 1
    return counts


def lose(made: Cluster, broker: int) -> None:
    made.wait(20_000, *(b for b in made.image.brokers if b != broker))
    assert made.image.brokers[broker].fenced
    look(made)


def test_a_broker_that_joins_gets_its_share_a_wave_at_a_time() -> None:
    made = cluster()
    join(made, 4)
    assert runs_of(made.image) == {4: Run.FILL}
    look(made)
    begun = moving(made)
    assert len(begun) == WAVE
    for _ in range(5):
        look(made)
    assert moving(made) == begun, "the next wave waits for this one"
    for index in begun:
        assert len(made.partition("t", index).replicas) >= 3, "added before removed"
    catch_up(made)
    run(made)
    assert held(made) == {1: 12, 2: 12, 3: 12, 4: 12}
    assert runs_of(made.image) == {}


def test_nothing_moves_where_it_is_not_switched_on() -> None:
    made = cluster(scriba_balance_auto="false")
    join(made, 4)
    lose(made, 3)
    made.wait(2 * GONE_MS, 1, 2, 4)
    assert look(made) == []
    assert runs_of(made.image) == {}


def test_a_broker_that_is_gone_for_long_is_emptied_and_filled_when_it_returns() -> None:
    made = cluster()
    join(made, 4)
    run(made)
    lose(made, 3)
    made.wait(GONE_MS - 5_000, 1, 2, 4)
    assert look(made) == []
    made.wait(5_000, 1, 2, 4)
    look(made)
    assert runs_of(made.image) == {3: Run.EMPTY}
    run(made)
    assert held(made) == {1: 16, 2: 16, 3: 0, 4: 16}
    assert runs_of(made.image) == {3: Run.EMPTIED}
    join(made, 3)
    run(made)
    assert held(made) == {1: 12, 2: 12, 3: 12, 4: 12}
    assert runs_of(made.image) == {}


def test_the_next_controller_goes_on_with_it() -> None:
    made = cluster()
    join(made, 4)
    look(made)
    catch_up(made)
    after = Cluster(
        made.reloaded(), scriba_balance_auto="true", auto_leader_rebalance_enable="false"
    )
    for broker in (1, 2, 3, 4):
        after.beat(broker)
    run(after)
    assert held(after) == {1: 12, 2: 12, 3: 12, 4: 12}


def test_cancelling_a_move_stops_it_until_there_is_a_new_cause() -> None:
    made = cluster()
    join(made, 4)
    look(made)
    assert not reassign(made, None, index=moving(made)[0]).error_code
    assert runs_of(made.image) == {}
    catch_up(made)
    before = held(made)
    for _ in range(3):
        assert look(made) == []
    assert held(made) == before
    join(made, 5)
    run(made)
    assert held(made)[5] == 10


def test_who_was_to_be_emptied_is_left_alone_after_a_cancel_until_it_returns() -> None:
    made = cluster()
    join(made, 4)
    run(made)
    lose(made, 3)
    made.wait(GONE_MS, 1, 2, 4)
    look(made)
    look(made)
    assert not reassign(made, None, index=moving(made)[0]).error_code
    assert runs_of(made.image) == {3: Run.LEFT}
    catch_up(made)
    made.wait(3 * GONE_MS, 1, 2, 4)
    assert look(made) == []
    join(made, 3)
    look(made)
    assert runs_of(made.image) == {}


def test_a_partition_that_nobody_leads_and_one_without_another_place_stay() -> None:
    made = cluster(3)
    made.create("alone", -1, -1, assignments={0: [3]})
    made.create("all", -1, -1, assignments={0: [1, 2, 3]})
    lose(made, 3)
    made.wait(GONE_MS, 1, 2)
    run(made)
    assert made.partition("alone").replicas == (3,)
    assert made.partition("all").replicas == (1, 2, 3)
    assert held(made) == {1: 3, 2: 3, 3: 0}
    join(made, 4)
    assert runs_of(made.image) == {3: Run.EMPTY, 4: Run.FILL}
    look(made)
    assert {*made.partition("all").target} == {1, 2, 4}


def test_a_wave_does_not_wait_for_a_broker_that_is_away() -> None:
    made = cluster()
    join(made, 4)
    join(made, 5)
    look(made)
    stuck = [n for n in moving(made) if 5 in made.partition("t", n).adding_replicas]
    assert stuck
    lose(made, 5)
    catch_up(made)
    for _ in range(20):
        look(made)
        catch_up(made)
    assert held(made)[4] >= 9


def test_deleting_the_setting_stops_it_and_nonsense_is_refused() -> None:
    made = cluster()
    join(made, 4)
    assert not change(made, 4, "", (NAME, DELETE, None)).error_code
    assert look(made) == []
    assert change(made, 4, "", (NAME, SET, "fill:x")).error_code
    refused = change(made, 4, "2", (NAME, SET, "fill:4"))
    assert "for the whole cluster" in refused.error_message
    with pytest.raises(ConfigError, match="for the whole cluster"):
        NodeSettings.parse({NAME: "fill:4"})
    assert unknown_run("fill:4, empty:5") is None
    assert read_runs("fill:4,what:5,left:6") == {4: Run.FILL, 6: Run.LEFT}
