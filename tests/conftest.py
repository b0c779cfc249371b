"""How all tests run.

One thread a process: as many tests run at once as there are cores, and those that start processes run beside them.
No test asserts wall time, generated ones included: a shared machine may stand still for seconds.
Generated cases are the same in every run; `pytest tests/property --hypothesis-profile=search` looks for new ones.
"""

import os
import signal
import sys
from collections.abc import Iterator

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS")
for name in THREADS:  # before any library reads it, and for every process that a test starts
    os.environ[name] = "1"
# Where bytecode is not kept, each of the hundreds of processes that tests start would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

SLOW = [HealthCheck.too_slow]  # a busy machine makes few examples a second
settings.register_profile("shared machine", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("search", deadline=None, suppress_health_check=SLOW)
settings.load_profile("shared machine")

# A shell has its background jobs ignore Ctrl-C, and so does what they start: a test of it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One process of xdist runs the tests of each of these folders, one by one.
SERIAL = ("tests/browser/", "tests/notebooks/")
# These start many processes and wait for a third of their time. One process of xdist begins with them, file by file.
# The others take them when all other tests are dealt out. The longest files come first: no process works on one alone
# at the end.
DEALT_SINGLY = "tests/distributed/installed/test_documented_commands.py"
MULTI_PROCESS = (
    DEALT_SINGLY,
    "tests/hosts/test_ssh_launcher.py",
    "tests/hosts/",
    "tests/distributed/",
)


class TellFailures:
    """Says at once which test failed, and why in a line: a run of all tests that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            words = (report.longreprtext.strip().splitlines() or [""])[-1]
            terminal.write_line(f"\nFAILED {report.when} of {report.nodeid}: {words:.300}")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(TellFailures(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compiles the planners' kernels once, before any test: else each process would, and tests wait for minutes."""
    from hetplanner.planners.search.compiled_parts import begin_compiling

    for process in [begin_compiling() for _ in range(os.cpu_count() or 1)]:
        if process is not None:
            process.wait()


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Iterator[int]:
    """One process more than there are cores: tests of `MULTI_PROCESS` leave theirs idle while they wait."""
    return (yield) + 1


def _place(scope: str) -> int:
    return next(place for place, start in enumerate(MULTI_PROCESS) if scope.startswith(start))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deals tests out one by one, but folders of `SERIAL` whole, and those of `MULTI_PROCESS` by files.

    The last of three or more processes begins with those of `MULTI_PROCESS`; the others end with them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(MULTI_PROCESS) and not nodeid.startswith(DEALT_SINGLY):
                return nodeid.partition("::")[0]
            return next((folder for folder in SERIAL if nodeid.startswith(folder)), nodeid)

        def _assign_work_unit(self, node: object) -> None:
            is_last = len(self.nodes) > 2 and node is self.nodes[-1]
            first = self._next_of(is_last) or self._next_of(not is_last)
            if first is not None:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

        def _next_of(self, multi_process: bool) -> str | None:
            scopes = (scope for scope in self.workqueue if scope.startswith(MULTI_PROCESS) is multi_process)
            return min(scopes, key=_place, default=None) if multi_process else next(scopes, None)

        def schedule(self) -> None:
            """A process begins a test once it knows the next one; xdist deals one test to one that comes later."""
            super().schedule()
            for node in self.nodes:
                self._reschedule(node)

    return Scheduling(config, log)
