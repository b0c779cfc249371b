"""The launcher's tile: what Jupyter is told, which kernels know of it, and how its server ends."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from jupyter_server_proxy.config import ServerProcess

from hetplanner.ui.notebook import jupyter
from hetplanner.ui.notebook.framed import JupyterDashboard
from tests.support.processes.patience import HANG_S, until

# Starts the server as Jupyter does, says its number, and is then killed.
STARTS = """
import subprocess, sys, time
command = [word.format(unix_socket=sys.argv[1]) for word in sys.argv[2:]]
print(subprocess.Popen(command).pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict:
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(jupyter.HOME_VARIABLE, "")  # set anew by what follows, and put back afterwards
    (found,) = entry_points(group="jupyter_serverproxy_servers", name=jupyter.NAME)
    return found.load()()


def test_jupyter_takes_the_tile_on_a_socket_without_a_port(tile: dict) -> None:
    server = ServerProcess(name=jupyter.NAME, **tile)
    assert server.unix_socket is True
    assert server.launcher_entry.path_info == jupyter.PATH
    assert Path(server.launcher_entry.icon_path).read_text().startswith("<svg")


def test_kernels_know_a_tile_that_shows_their_runs(tile: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert jupyter.serves_this_kernel()
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "another"))
    assert not jupyter.serves_this_kernel()
    monkeypatch.delenv(jupyter.HOME_VARIABLE)
    assert not jupyter.serves_this_kernel()


def test_the_cell_s_address_is_under_the_base_url_of_the_notebook_s_own_page() -> None:
    html = JupyterDashboard(700)._repr_mimebundle_()["text/html"]
    assert '"hetplanner/planner"' in html
    assert "baseUrl" in html
    assert "height:700px" in html
    assert "localhost" not in html


def test_the_server_ends_with_a_jupyter_that_is_killed(tile: dict, tmp_path: Path) -> None:
    folder = tmp_path / "socket"
    folder.mkdir(mode=0o700)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS, str(folder / "s"), *tile["command"]], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    server = int(starter.stdout.readline())
    until((folder / "s").exists)
    starter.kill()
    starter.wait(HANG_S)
    starter.stdout.close()
    until(lambda: not is_alive(server))


def is_alive(process: int) -> bool:
    """Whether a process has not ended; one that nobody waits for yet has."""
    try:
        return "Z" not in (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return os.path.exists(f"/proc/{process}")
