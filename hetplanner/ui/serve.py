"""`hetplanner dashboard`: the page behind a gate, on the loopback interface unless another is asked for."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_path
from typing import TYPE_CHECKING, Any

import psutil

import hetplanner
from hetplanner.errors import InvalidInput, RunError
from hetplanner.ui.security.access import LOOPBACK_HOSTS, LaunchGuard, allowed_hosts, launch_token, new_token

if TYPE_CHECKING:
    from hetplanner.ui.security.gate import Gate

LOOPBACK = "127.0.0.1"
MAX_MESSAGE_BYTES = 20 * 2**20
"""Of a WebSocket; files come in chunks of half that."""


def samples_folder() -> Path:
    """The sample clusters: of the repository, or as a wheel has installed them."""
    repository = Path(hetplanner.__file__).resolve().parents[1] / "sample_clusters"
    return repository if repository.is_dir() else Path(get_path("data")) / "share" / "hetplanner" / "sample_clusters"


def serve_dashboard(
    port: int = 5006,
    open_browser: bool = False,
    *,
    host: str = LOOPBACK,
    home: Path | None = None,
    frames_from: Sequence[str] = (),
) -> None:
    """Serves the dashboard until interrupted; prints a link that opens once, and the launch token.

    Args:
        port: 0 takes a free one.
        open_browser: opens a browser window.
        host: address to listen on. Any but a loopback one shows nothing without the token, and is warned of.
        home: where runs live; None takes `$HETPLANNER_HOME` or the platform's data directory.
        frames_from: origins (a notebook's) whose pages may show the dashboard in a frame.

    Raises:
        InvalidInput: the host is no address of this machine.
        RunError: the port is taken.
    """
    from hetplanner.ui.security.gate import Gate

    port = _free_port(host, port)
    is_open = not is_loopback(host)
    token, is_given = launch_token()
    guard = LaunchGuard(token)
    hosts = own_hosts(host)
    gate = Gate(guard, hosts, cookie=f"hetplanner-{port}", demands_cookie=is_open, frames_from=frames_from)
    origins = [f"{name}:{port}" for name in sorted(hosts) if "[" not in name]
    server = _make_server(gate, home, address=host, port=port, websocket_origin=origins)
    link = f"http://{_name_in_link(host)}:{port}/planner?token={gate.link_token}"
    sys.stdout.write(_announcement(link, None if is_given else token))
    if is_open:
        sys.stderr.write(_warning(host, port))
    sys.stdout.flush()
    if open_browser:
        webbrowser.open(link)
    _run(server)


def serve_behind_login(path: Path, home: Path | None = None) -> None:
    """Serves the dashboard on a Unix socket until interrupted, for a proxy with a login.

    Args:
        path: of the socket, in a folder that only this user may enter.
        home: where runs live; None takes `$HETPLANNER_HOME` or the platform's data directory.

    Raises:
        InvalidInput: others may enter the folder.
    """
    from hetplanner.ui.security.gate import Gate

    info = path.parent.stat()
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise InvalidInput(f"{path.parent}: others may enter it; give a folder of your own (chmod 700)")
    hosts = allowed_hosts() - LOOPBACK_HOSTS
    gate = Gate(LaunchGuard(new_token()), hosts, behind_login=True, frames_from=("'self'",))
    # The gate holds every Origin against the Host that the proxy was asked for; Bokeh would have to know that name, and
    # warns of a server that does not.
    logging.getLogger("bokeh.server.util").setLevel(logging.ERROR)
    _run(_make_server(gate, home, unix_socket=str(path), websocket_origin=["*"]))


def _make_server(gate: Gate, home: Path | None, **where: Any) -> Any:
    """Panel's server with a gate before all that it serves."""
    import panel as pn

    from hetplanner.ui.run.views.away import COOKIE as SEEN_COOKIE
    from hetplanner.ui.security.gate import MAX_BODY_BYTES
    from hetplanner.ui.shell.views.shell import planner_page

    def page() -> Any:
        return planner_page(
            samples_folder(), guard=gate.guard, home=home, hosts=gate.hosts, behind_login=gate.behind_login
        )

    server = pn.serve(
        {"planner": page},
        show=False,
        start=False,
        warm=True,  # the first page would take two seconds longer than others
        title="hetplanner",
        # Signed: a session cannot be opened with a token that another process made.
        sign_sessions=True,
        secret_key=secrets.token_bytes(32),
        # Bokeh writes what it keeps of a request into the page, where scripts read it: our cookie may not be there.
        include_headers=["Host"],
        include_cookies=[SEEN_COOKIE],
        http_server_kwargs={"max_body_size": MAX_BODY_BYTES},
        websocket_max_message_size=MAX_MESSAGE_BYTES,
        verbose=False,
        **where,
    )
    gate.install(server._tornado)  # before the loop runs, so no request comes first
    return server


def _run(server: Any) -> None:
    for name in ("SIGTERM", "SIGHUP"):  # as Ctrl-C: pending writes are done before the process ends
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` has it ignored
            signal.signal(number, signal.getsignal(signal.SIGINT))
    server.start()
    server.io_loop.start()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    return host == "localhost" or host.startswith("127.") or host in ("::1", "[::1]")


def own_hosts(host: str) -> frozenset[str]:
    """Names that a server listening on `host` goes by: loopback's, its own, and those of `HETPLANNER_ALLOWED_HOSTS`.

    An address in digits cannot be rebound, and every machine's own name is its own; no other name gets in.
    """
    if is_loopback(host):
        return allowed_hosts() | {host}
    if host not in ("0.0.0.0", "::"):
        return allowed_hosts() | {host.lower()}
    return allowed_hosts() | set(_own_addresses()) | {socket.gethostname().lower()}


def _name_in_link(host: str) -> str:
    if is_loopback(host):
        return "localhost" if host == LOOPBACK else host
    if host not in ("0.0.0.0", "::"):
        return host
    return next((address for address in _own_addresses() if not is_loopback(address)), "localhost")


def _own_addresses() -> list[str]:
    """Addresses of this machine as a Host header has them, IPv4 first."""
    found = [address for group in psutil.net_if_addrs().values() for address in group]
    v4 = [a.address for a in found if a.family == socket.AF_INET]
    v6 = [f"[{a.address.lower()}]" for a in found if a.family == socket.AF_INET6 and "%" not in a.address]
    return v4 + v6


def _announcement(link: str, token: str | None) -> str:
    lines = ["", "  hetplanner dashboard (Ctrl-C ends it; runs go on)", ""]
    lines += [f"  {link}", "  This link opens once, with the right to launch."]
    if token is not None:
        lines.append(f"  For another browser, the launch token: {token}")
    return "\n".join([*lines, "", ""])


def _warning(host: str, port: int) -> str:
    return (
        f"warning: {host}:{port} accepts other machines, and HTTP is not encrypted: an eavesdropper can do all that"
        " you can, including training on this machine.\n"
        f"         Safer: leave out --host and use `ssh -L {port}:localhost:{port} {socket.gethostname()}`.\n\n"
    )


def _free_port(host: str, port: int) -> int:
    if host in LOOPBACK_HOSTS - {"[::1]"}:
        host = LOOPBACK
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (socket.gaierror, UnicodeError):
            raise InvalidInput(f"--host: {host!r:.80} is no address of this machine; try 0.0.0.0") from None
        except OSError as error:
            raise RunError(f"port {port} of {host}: {error.strerror}; give another with --port or --host") from None
        return int(probe.getsockname()[1])
