"""`hetplanner dashboard`: the page on the loopback interface, with signed sessions and the same guard as the app."""

import secrets
import socket
import sys
from pathlib import Path

import hetplanner
from hetplanner.errors import RunError
from hetplanner.ui.access import allowed_hosts, process_guard

ADDRESS = "127.0.0.1"


def samples_folder() -> Path:
    """The repository's sample clusters; an empty listing where only the package is installed."""
    return Path(hetplanner.__file__).resolve().parents[1] / "sample_clusters"


def serve_dashboard(port: int = 5006, open_browser: bool = False, *, home: Path | None = None) -> None:
    """Serves the dashboard until interrupted; prints its address and the launch token.

    Args:
        port: on 127.0.0.1; 0 takes a free one.
        open_browser: opens a browser window.
        home: where runs live; None takes `$HETPLANNER_HOME` or the platform's data directory.

    Raises:
        RunError: the port is taken.
    """
    import panel as pn

    from hetplanner.ui.views.shell import planner_page

    port = _free_port(port)
    sys.stdout.write(f"hetplanner dashboard: http://localhost:{port}/planner (Ctrl-C ends it; runs go on)\n")
    process_guard()  # prints the token
    origins = [f"{host}:{port}" for host in sorted(allowed_hosts()) if "[" not in host]
    pn.serve(
        {"planner": lambda: planner_page(samples_folder(), home=home)},
        address=ADDRESS,
        port=port,
        show=open_browser,
        title="hetplanner",
        websocket_origin=origins,
        # Signed: a page of another site cannot forge the headers that a session's token carries.
        sign_sessions=True,
        secret_key=secrets.token_bytes(32),
        verbose=False,
    )


def _free_port(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise RunError(f"port {port} of {ADDRESS}: {error.strerror}; give another with --port") from None
        return int(probe.getsockname()[1])
