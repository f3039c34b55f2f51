"""Both twins, the extension and the one in Python, go through the same tests."""

import shutil
import sysconfig
from collections.abc import Iterator

import hypothesis
import pytest

from scriba.native import implementation as native

# A busy machine is no fault of the code.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])


NOT_BUILT = "scriba.native._native is not built: pip install -e . --no-deps --no-build-isolation"


def twins() -> list[str]:
    """Where there is a compiler the extension has to be there, or its tests fail."""
    return ["native", "pure"] if native.NATIVE or COMPILER else ["pure"]


@pytest.fixture(scope="module", params=twins())
def kit(request: pytest.FixtureRequest) -> Iterator[native.Kit]:
    """One twin after the other, in use everywhere while the test runs."""
    chosen = native.PURE if request.param == "pure" else native.NATIVE
    assert chosen is not None, NOT_BUILT
    before, native.kit = native.kit, chosen
    yield chosen
    native.kit = before


@pytest.fixture(scope="session")
def extension() -> native.Kit:
    if native.NATIVE is None and COMPILER is None:
        pytest.skip("no compiler here")
    assert native.NATIVE is not None, NOT_BUILT
    return native.NATIVE
