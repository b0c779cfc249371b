"""A Chromium for browser tests: one that is installed, Playwright's own, else one that is installed now.

The shell without windows is preferred: a page takes a fifth less CPU time in it.

`python tests/support/pages/find_browser.py` prints where it is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/usr/lib/chromium/chromium",
    "/opt/google/chrome/chrome",
    "/snap/bin/chromium",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
# Where Playwright keeps its own: asked in a process, for its driver runs an event loop.
PLAYWRIGHTS_OWN = (
    "from playwright.sync_api import sync_playwright as start\nwith start() as p: print(p.chromium.executable_path)"
)
DRIVERS_LIBRARY = "libatomic1"
# Hang limits of a download in the background of nothing else.
INSTALL_S = 600.0
ANSWER_S = 120.0


class BrowserMissing(Exception):
    """No browser is there, and none could be installed; one line that says what to do."""


def find_browser() -> str:
    """Path of a Chromium or Chrome that starts; installs one where that is allowed. Raises BrowserMissing."""
    with package_lock():
        return _find_or_install()


@contextmanager
def package_lock() -> Iterator[None]:
    """One process of tests installs packages at a time. A program that is found under the lock is installed whole."""
    path = Path(tempfile.gettempdir()) / f"hetplanner-test-packages-{os.getuid()}.lock"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _find_or_install() -> str:
    prepare_driver()
    found = working_browser()
    if found is not None:
        return found
    tried = []
    for install in (partial(install_by_apt, SHELL), install_by_apt, install_by_playwright):
        why = install()
        found = working_browser()
        if found is not None:
            return found
        tried.append(why)
    reasons = "; ".join(dict.fromkeys(tried))
    raise BrowserMissing(
        f"browser tests need Chromium or Chrome: none is installed; {reasons}; install one (on Debian"
        " `apt-get install chromium`)"
    )


def prepare_driver() -> None:
    """Playwright's driver needs a library that a minimal Debian lacks; installs it. Raises BrowserMissing."""
    if driver_starts():
        return
    why = install_by_apt(DRIVERS_LIBRARY)
    if not driver_starts():
        raise BrowserMissing(f"browser tests need Playwright's driver, which does not start; {why}")


def driver_starts() -> bool:
    """Whether Playwright's driver says its version."""
    return run([sys.executable, "-m", "playwright", "--version"], ANSWER_S).returncode == 0


def working_browser() -> str | None:
    """The first browser there that starts."""
    return next((path for path in known_places() if starts(path)), None)


def known_places() -> Iterator[str]:
    """Programs that may be browsers, Playwright's own last."""
    yield from filter(None, map(shutil.which, NAMES))
    yield from filter(shutil.which, PLACES)
    done = run([sys.executable, "-c", PLAYWRIGHTS_OWN], ANSWER_S)
    if done.returncode == 0 and Path(done.stdout.strip()).is_file():
        yield done.stdout.strip()


def starts(path: str) -> bool:
    """Whether a browser says its version: a stub, or one whose libraries are missing, does not."""
    return run([path, "--headless", "--no-sandbox", "--version"], ANSWER_S).returncode == 0


def install_by_apt(package: str = "chromium") -> str:
    """Installs a package of Debian's as root, under :func:`package_lock`; says what came of it."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    if os.geteuid() != 0:
        return "only root may use apt-get"
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run(["apt-get", "update", "-qq"], INSTALL_S)
    return outcome(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package])


def install_by_playwright() -> str:
    """Installs Playwright's Chromium for this user; says what came of it."""
    return outcome([sys.executable, "-m", "playwright", "install", "chromium"])


def outcome(command: list[str]) -> str:
    """Runs a command; its last words if it fails."""
    done = run(command, INSTALL_S)
    shown = f"`{' '.join(Path(command[0]).name if i == 0 else part for i, part in enumerate(command))}`"
    if done.returncode == 0:
        return f"{shown} brought none that starts"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    return f"{shown} failed ({next((line for line in lines if line.startswith(('E:', 'Error:'))), lines[-1])})"


def run(command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """A command's exit code and all it says; one that cannot start, or takes too long, has failed."""
    try:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, f"{error}", "")


if __name__ == "__main__":
    try:
        print(find_browser())
    except BrowserMissing as missing:
        sys.exit(str(missing))
