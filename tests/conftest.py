"""What holds for every test: the order of the stages, the list of skips, where the time went."""

import faulthandler
import os
import runpy
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A time limit on each example would judge the machine, not the code.
# The same examples in every run, on however slow a machine; `make search` tries others.
hypothesis.settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "few", hypothesis.settings.get_profile("same"), max_examples=20
)
hypothesis.settings.register_profile(
    "search",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def own_temporary_folder() -> Path:
    """Where tests, and all that they start, leave their files: it goes with the session.

    Its name is short, as the path of a socket in it may have few characters. Folders of `tmp_path`,
    which pytest keeps to be looked at, stay where they were.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="scriba-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    java = f"-Djava.io.tmpdir={folder}"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java}".strip()
    return Path(folder)


# Those who run tests side by side share that of the process that started them.
TEMPORARY = None if "PYTEST_XDIST_WORKER" in os.environ else own_temporary_folder()

TESTS = Path(__file__).parent
STAGES = (
    "layers",
    "unit",
    "golden",
    "sim",
    "integration",
    "conformance",
    "faults",
    "spark",
    "browser",
)
HEAVY = ("spark", "browser")
ALLOWED_SKIPS = TESTS / "allowed_skips.txt"


def stage_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0].removeprefix("tests/")
    return path.split("/")[0] if "/" in path else "layers"


def group_of(nodeid: str) -> str:
    """What stays together where tests run side by side.

    Those of a file share what they start. All that start a Spark or a browser run one after the
    other: two at a time leave a small machine no time for either.
    """
    return "heavy" if stage_of(nodeid) in HEAVY else nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The cheapest tests first, so that a mistake shows early.

    Side by side, the heavy ones begin at once and last as long as all others.
    """
    order = {stage: place for place, stage in enumerate(STAGES)}
    if hasattr(config, "workerinput"):
        order |= {stage: order[stage] - len(STAGES) for stage in HEAVY}
    items.sort(key=lambda item: order.get(stage_of(item.nodeid), len(STAGES)))


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups in the order of their tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together:
    config.option.loadscopereorder = False
    return Together(config, log)


class Tally:
    """Counts what the end of a run tells: time per stage, figures of tests that passed
    (`record_property`), and skips nobody wrote down."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.skipped: list[str] = []
        self.figures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[stage_of(report.nodeid)] += report.duration
        if report.skipped:
            self.note(report.nodeid)
        if report.when == "call" and report.passed:
            test = report.nodeid.partition("::")[2].partition("@tests/")[0]
            self.figures += [f"{name}: {value} ({test})" for name, value in report.user_properties]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.note(report.nodeid)

    def note(self, nodeid: str) -> None:
        name = nodeid.partition("@tests/")[0]  # side by side, it ends with what it belongs to
        if not any(fnmatch(name, pattern) for pattern in allowed_skips()):
            self.skipped.append(name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped without a reason in tests/allowed_skips.txt")
            for nodeid in self.skipped:
                terminalreporter.line(nodeid)
        if self.figures:
            terminalreporter.section("figures")
            for line in self.figures:
                terminalreporter.line(line)
        terminalreporter.section("where the time went")
        for name, seconds in [*earlier(), *self.spent.items()]:
            terminalreporter.line(f"{seconds:8.1f} s  {name}")


def allowed_skips() -> Iterator[str]:
    """Patterns of test names, one a line, each followed by `#` and the reason."""
    for line in ALLOWED_SKIPS.read_text().splitlines():
        pattern, _, reason = line.partition("#")
        if pattern.strip():
            assert reason.strip(), f"{ALLOWED_SKIPS.name}: {line!r} gives no reason"
            yield pattern.strip()


def earlier() -> Iterator[tuple[str, float]]:
    """What `make test` did before the tests, handed over by tools/check.py."""
    for item in filter(None, os.environ.get("SCRIBA_SPENT", "").split(",")):
        name, _, seconds = item.partition("=")
        yield name, float(seconds)


def refuse_an_old_extension() -> None:
    """What is tested is what is written: an update of the sources leaves an old build behind."""
    built = next((TESTS.parent / "src/scriba/native").glob("_native*.so"), None)
    if built is None or "SCRIBA_SANITIZED" in os.environ:
        return
    newest = max(path.stat().st_mtime for path in (TESTS.parent / "src/native").iterdir())
    if newest <= built.stat().st_mtime:
        return
    from scriba.native import _native

    fingerprint = runpy.run_path(str(TESTS.parent / "setup.py"))["fingerprint"]
    if fingerprint() != _native.SOURCES:
        build = "pip install -e . --no-deps --no-build-isolation"
        raise pytest.UsageError(
            f"{built.name} is older than src/native; make builds it, or {build}"
        )


def pytest_configure(config: pytest.Config) -> None:
    # Asked by tools/check.py where a run stands; a copy, as each test's output is taken away.
    faulthandler.register(signal.SIGUSR1, file=os.dup(2), all_threads=True)
    # A shell that runs this beside itself has it ignore Ctrl-C, and nohup the end of a terminal;
    # all that tests start would do the same.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not hasattr(config, "workerinput"):
        refuse_an_old_extension()
        config.pluginmanager.register(Tally(), "scriba-tally")


def pytest_sessionstart(session: pytest.Session) -> None:
    """What tests read of a log keeps the format it has.

    pytest hands its handlers to every logger that does not propagate, and those of pyspark give
    each handler a formatter of their own, which then all tests of the process would have.
    """
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda formatter: None


def pytest_unconfigure() -> None:
    if TEMPORARY is not None:
        shutil.rmtree(TEMPORARY, ignore_errors=True)
