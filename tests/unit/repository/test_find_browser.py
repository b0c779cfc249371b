"""A browser for the browser tests is found or installed, or one line says why not; nothing is installed here."""

import subprocess

import pytest

from tests.support.pages import find_browser as finding


class Machine:
    """Programs that are there, by path, and what commands do: they fail unless told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, root: bool = False) -> None:
        self.there: set[str] = set()
        self.broken: set[str] = set()
        self.own = ""
        self.driver_starts = True
        self.brings: dict[str, str] = {}
        self.ran: list[list[str]] = []
        monkeypatch.setattr(finding, "run", self.run)
        monkeypatch.setattr(finding.shutil, "which", self.which)
        monkeypatch.setattr(finding.os, "geteuid", lambda: 0 if root else 1000)
        monkeypatch.setattr(finding.Path, "is_file", lambda path: str(path) in self.there)
        monkeypatch.setenv("DEBIAN_FRONTEND", "")

    def which(self, name: str) -> str | None:
        path = name if name.startswith("/") else f"/usr/bin/{name}"
        return path if path in self.there else None

    def run(self, command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        if finding.PLAYWRIGHTS_OWN in command:
            return subprocess.CompletedProcess(command, 0, f"{self.own}\n", "")
        if "playwright" in command and "--version" in command:
            return subprocess.CompletedProcess(command, int(not self.driver_starts), "", "")
        if "--version" in command:
            return subprocess.CompletedProcess(command, int(command[0] in self.broken), "", "")
        self.ran.append(command)
        word = next((w for w in command if w in self.brings), None)
        if word is None:
            return subprocess.CompletedProcess(command, 1, "Reading\nE: no such host\n", "")
        self.there.add(self.brings[word])
        self.driver_starts |= word == finding.DRIVERS_LIBRARY
        return subprocess.CompletedProcess(command, 0, "", "")


def test_an_installed_browser_is_taken_and_nothing_installed(monkeypatch):
    machine = Machine(monkeypatch, root=True)
    machine.there = {"/usr/bin/google-chrome", "/usr/bin/apt-get"}
    assert finding.find_browser() == "/usr/bin/google-chrome"
    assert machine.ran == []


def test_one_that_does_not_start_is_passed_by_for_playwrights_own(monkeypatch):
    machine = Machine(monkeypatch)
    machine.there = {"/usr/bin/chromium-browser", "/cache/chrome"}
    machine.broken, machine.own = {"/usr/bin/chromium-browser"}, "/cache/chrome"
    assert finding.find_browser() == "/cache/chrome"
    assert machine.ran == []


@pytest.mark.parametrize("package", ["chromium-headless-shell", "chromium"])
def test_root_installs_debians_the_shell_without_windows_first(monkeypatch, package):
    machine = Machine(monkeypatch, root=True)
    machine.there = {"/usr/bin/apt-get"}
    machine.brings = {package: f"/usr/bin/{package}"}
    assert finding.find_browser() == f"/usr/bin/{package}"
    assert machine.ran[-1][-1] == package
    assert {command[0] for command in machine.ran} == {"apt-get"}


def test_an_ordinary_user_installs_playwrights(monkeypatch):
    machine = Machine(monkeypatch)
    machine.there, machine.own = {"/usr/bin/apt-get"}, "/cache/chrome"
    machine.brings = {"playwright": "/cache/chrome"}
    assert finding.find_browser() == "/cache/chrome"
    assert len(machine.ran) == 1


def test_the_library_of_playwrights_driver_is_installed_first(monkeypatch):
    machine = Machine(monkeypatch, root=True)
    machine.there, machine.driver_starts = {"/usr/bin/chromium", "/usr/bin/apt-get"}, False
    machine.brings = {finding.DRIVERS_LIBRARY: "/usr/lib/libatomic.so.1"}
    assert finding.find_browser() == "/usr/bin/chromium"
    assert machine.ran[-1][-1] == finding.DRIVERS_LIBRARY


def test_a_driver_that_does_not_start_is_one_line(monkeypatch):
    machine = Machine(monkeypatch)
    machine.there, machine.driver_starts = {"/usr/bin/chromium", "/usr/bin/apt-get"}, False
    with pytest.raises(finding.BrowserMissing, match="driver, which does not start; only root may use apt-get"):
        finding.find_browser()


@pytest.mark.parametrize(
    ("root", "apt", "why"),
    [
        (True, True, "--no-install-recommends chromium-headless-shell` failed (E: no such host); `apt-get"),
        (True, True, "`apt-get install -y -qq --no-install-recommends chromium` failed (E: no such host)"),
        (False, True, "only root may use apt-get"),
        (True, False, "there is no apt-get"),
    ],
)
def test_where_none_can_be_had_one_line_says_why(monkeypatch, root, apt, why):
    machine = Machine(monkeypatch, root=root)
    machine.there = {"/usr/bin/apt-get"} if apt else set()
    with pytest.raises(finding.BrowserMissing) as missing:
        finding.find_browser()
    text = str(missing.value)
    assert why in text
    assert "-m playwright install chromium` failed (E: no such host)" in text
    assert "\n" not in text


def test_a_command_that_hangs_or_is_not_there_has_failed():
    assert finding.run(["no-such-program-anywhere"], 5.0).returncode == 1
    assert "timed out" in finding.run(["sleep", "60"], 0.05).stdout
