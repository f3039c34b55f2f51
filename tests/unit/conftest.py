"""Both implementations, the extension and the fallback in Python, go through the same tests."""

import shutil
import sysconfig
from collections.abc import Iterator

import pytest

from scriba.native import implementation

COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
NOT_BUILT = "scriba.native._native is not built: pip install -e . --no-deps --no-build-isolation"


def names() -> list[str]:
    """Where there is a compiler the extension has to be there, or its tests fail."""
    return ["native", "fallback"] if implementation.NATIVE or COMPILER else ["fallback"]


@pytest.fixture(scope="module", params=names())
def chosen(request: pytest.FixtureRequest) -> Iterator[implementation.Implementation]:
    """One after the other, in use everywhere while the test runs."""
    fallback = request.param == "fallback"
    chosen = implementation.FALLBACK if fallback else implementation.NATIVE
    assert chosen is not None, NOT_BUILT
    before, implementation.chosen = implementation.chosen, chosen
    yield chosen
    implementation.chosen = before


@pytest.fixture(scope="session")
def extension() -> implementation.Implementation:
    if implementation.NATIVE is None and COMPILER is None:
        pytest.skip("no compiler here")
    assert implementation.NATIVE is not None, NOT_BUILT
    return implementation.NATIVE
