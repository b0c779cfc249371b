"""How all tests run.

One thread a process: as many tests run at once as there are cores, and those that start processes run beside them.
No test asserts wall time, generated ones included: a shared machine may stand still for seconds.
"""

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS")
for name in THREADS:  # before any library reads it, and for every process that a test starts
    os.environ[name] = "1"

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# Tests of these kinds start processes and browsers: with `--dist loadgroup` one process runs them, one by one.
SERIAL = ("browser", "distributed", "notebook")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(kind) for kind in SERIAL):
            item.add_marker(pytest.mark.xdist_group("one by one"))
