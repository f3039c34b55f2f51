"""For pytest, `-p tests.fuzz.plugin`: tests use the extension that the environment names."""

from tests.fuzz import build

build.load()


def pytest_report_collectionfinish() -> str:
    from scriba.native import _native, implementation

    assert implementation.NATIVE is not None
    assert implementation.NATIVE.murmur2 is vars(_native)["murmur2"]
    return f"sanitized: in use, {_native.__file__}"
