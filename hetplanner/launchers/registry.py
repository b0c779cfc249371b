"""Launchers by name."""

from collections.abc import Callable

from hetplanner.errors import InvalidInput
from hetplanner.launchers.interface import Launcher
from hetplanner.launchers.local import LocalLauncher

LAUNCHERS: dict[str, Callable[[], Launcher]] = {"local": LocalLauncher}


def make_launcher(name: str) -> Launcher:
    """The launcher behind `--launcher NAME`. Raises InvalidInput."""
    if name not in LAUNCHERS:
        raise InvalidInput(f"launcher: must be one of {', '.join(sorted(LAUNCHERS))}, got {name!r:.60}")
    return LAUNCHERS[name]()
