"""The contract of the shop's topics: every example is of its type."""

import json
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from scriba.pipelines.shop import topics


def fits(value: Any, wanted: Any) -> bool:
    if is_typeddict(wanted):
        hints = get_type_hints(wanted, include_extras=True)
        needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
        return needed <= value.keys() <= hints.keys() and all(
            fits(value[name], hints[name]) for name in value
        )
    origin, inside = get_origin(wanted), get_args(wanted)
    if origin is NotRequired:
        return fits(value, inside[0])
    if origin is Literal:
        return value in inside
    if origin is list:
        return isinstance(value, list) and all(fits(one, inside[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)
    if inside:
        return any(fits(value, one) for one in inside)
    return type(value) is wanted


@pytest.mark.parametrize("topic", topics.ALL)
def test_the_example_of_a_topic_is_of_its_type(topic: str) -> None:
    contract = topics.CONTRACTS[topic]
    assert fits(json.loads(json.dumps(contract.value)), contract.schema)
    assert contract.key


def test_a_value_that_lacks_a_field_is_noticed() -> None:
    contract = topics.CONTRACTS[topics.FUNNEL]
    assert not fits({**contract.value, "views": "3"}, contract.schema)
    assert not fits({"views": 3}, contract.schema)


def test_figures_are_compacted_and_events_are_not() -> None:
    made = {topic.name: topic for topic in topics.wanted(topics.Names("eu-"), partitions=4)}
    assert len(made) == len(topics.ALL)
    assert made["eu-product_viewed"].partitions == 4
    assert "cleanup.policy" not in made["eu-product_viewed"].configs
    assert "compact" in made["eu-sales_per_minute"].configs["cleanup.policy"]
    assert made["eu-product_viewed"].configs["message.timestamp.type"] == "LogAppendTime"
    assert made["eu-shop_products"].configs == {"cleanup.policy": "compact"}
