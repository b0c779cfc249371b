"""The dashboard behind Jupyter's own login: a tile of the launcher, through jupyter-server-proxy.

Jupyter starts the server on the first visit, on a Unix socket in a folder of this user: no port that others of the
machine could reach, and no secret to pass on. The right to launch comes with the login, which gives terminals and
kernels as well. `python -m hetplanner.ui.notebook.jupyter SOCKET` is that server; it ends with Jupyter.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hetplanner.runs.home import home_directory

NAME = "hetplanner"
PATH = f"{NAME}/planner"
"""Under Jupyter's base URL."""
START_S = 120.0
HOME_VARIABLE = "HETPLANNER_JUPYTER_HOME"
"""Kernels inherit it: their Jupyter server has the tile, whose runs are in this home."""
PARENT_CHECK_S = 1.0


def launcher() -> dict[str, Any]:
    """What jupyter-server-proxy asks for when Jupyter starts."""
    os.environ[HOME_VARIABLE] = str(home_directory())
    return {
        "command": [sys.executable, "-m", "hetplanner.ui.notebook.jupyter", "{unix_socket}"],
        "unix_socket": True,
        "timeout": START_S,
        "launcher_entry": {
            "title": NAME,
            "path_info": PATH,
            "icon_path": str(Path(__file__).with_name("jupyter_icon.svg")),
            "category": "Notebook",  # of other tiles JupyterLab shows no icon
        },
    }


def serves_this_kernel() -> bool:
    """Whether the Jupyter server that started this kernel has the tile, for the runs that this kernel sees."""
    return os.environ.get(HOME_VARIABLE) == str(home_directory())


def address() -> str | None:
    """Where the Jupyter server that started this kernel serves the dashboard; None if it is not found."""
    try:
        from jupyter_server.serverapp import list_running_servers
    except ImportError:
        return None
    own = {os.environ.get("JPY_PARENT_PID"), str(os.getppid())}
    urls = (str(info["url"]) for info in list_running_servers() if str(info["pid"]) in own)
    return next((f"{url.rstrip('/')}/{PATH}" for url in urls), None)


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(0)  # a Jupyter server that was killed could not say so


def main() -> None:
    """Serves on the socket that the command line names."""
    from hetplanner.ui.serve import serve_behind_login

    threading.Thread(target=_end_with_parent, daemon=True).start()
    serve_behind_login(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
