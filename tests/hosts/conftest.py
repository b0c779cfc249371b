"""Beds of hosts for tests: only root makes them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.hosts.host_bed import HostBed, HostSpec
from tests.support.hosts.launches.ssh_lab import HOSTS
from tests.support.hosts.netns import CAN_MAKE, NEEDS_ROOT


@pytest.fixture
def make_bed() -> Iterator[Callable[..., HostBed]]:
    """Makes beds, as `HostBed` does; they are gone after the test, whatever became of it."""
    if not CAN_MAKE:
        pytest.skip(NEEDS_ROOT)
    with ExitStack() as beds:
        yield lambda *args, **more: beds.enter_context(HostBed(*args, **more))


@pytest.fixture(scope="module")
def bed() -> Iterator[HostBed]:
    """The four hosts of `ssh_lab`, for all tests of a file."""
    if not CAN_MAKE:
        pytest.skip(NEEDS_ROOT)
    with HostBed([HostSpec(name) for name in HOSTS]) as hosts:
        yield hosts
