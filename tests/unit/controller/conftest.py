"""Clusters of a controller without a quorum."""

from collections.abc import Callable

import pytest

from tests.unit.controller.rig import WITHOUT_ELIGIBLE, Cluster


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    return Cluster


@pytest.fixture
def cluster() -> Cluster:
    """One broker, unfenced: the cluster of `scriba up`."""
    return Cluster().with_brokers(1)


@pytest.fixture
def older() -> Cluster:
    """Three brokers of a cluster that has no eligible leader replicas."""
    return Cluster(supported=WITHOUT_ELIGIBLE).with_brokers(1, 2, 3)


@pytest.fixture
def trio() -> Cluster:
    return Cluster().with_brokers(1, 2, 3)
