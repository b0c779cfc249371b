"""Where runs and the agent live: `$HETPLANNER_HOME`, or the platform's data directory."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import platformdirs

from hetplanner.errors import RunError

MAX_SOCKET_PATH_BYTES = 100
"""A Unix socket's path has 108 bytes on Linux and 104 on macOS, the final zero included."""

AGENT_FILE = "agent.json"
"""In the agent's directory: pid and version of who holds the lock."""


def home_directory() -> Path:
    """The directory that holds `runs/`, `plans/`, `drafts/` and `agent/`, absolute; it may not exist yet."""
    text = os.environ.get("HETPLANNER_HOME")
    return Path(text).expanduser().absolute() if text else Path(platformdirs.user_data_path("hetplanner"))


def runs_directory(home: Path | None = None) -> Path:
    """`HOME/runs`, created (0700) when it is missing."""
    return _inside(home, "runs")


def agent_directory(home: Path | None = None) -> Path:
    """`HOME/agent`: lock, log, audit log, `agent.json`; created (0700) when it is missing."""
    return _inside(home, "agent")


def plans_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/plans`: kept plans; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "plans") if make else (home or home_directory()) / "plans"


def drafts_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/drafts`: clusters that pages edit; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "drafts") if make else (home or home_directory()) / "drafts"


def _inside(home: Path | None, name: str) -> Path:
    home = home or home_directory()
    if not home.exists():  # one that is there already keeps the mode its owner gave it
        private_directory(home)
    return private_directory(home / name)


def private_directory(path: Path) -> Path:
    """Makes `path` a directory of this user that nobody else can enter.

    Raises:
        RunError: when it belongs to somebody else, is a link, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise RunError(f"{path}: must be a directory of your own; remove it or set HETPLANNER_HOME")
        if stat.S_IMODE(info.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise RunError(f"{path}: cannot be made: {error.strerror}; set HETPLANNER_HOME to a writable folder") from None
    return path


def socket_path(home: Path | None = None) -> Path:
    """Path of the agent's socket, in a directory of mode 0700.

    Normally `HOME/agent/socket`. Where that is too long for a socket's address, a file named after HOME's digest
    in a directory of this user under $XDG_RUNTIME_DIR or the temporary directory.
    """
    folder = agent_directory(home)
    path = folder / "socket"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
    candidates = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
    for base in filter(None, candidates):
        short = Path(base) / f"hetplanner-{os.getuid()}" / f"{digest}.sock"
        if Path(base).is_dir() and len(os.fsencode(short)) <= MAX_SOCKET_PATH_BYTES:
            private_directory(short.parent)
            return short
    raise RunError(f"{path}: too long for a socket; set HETPLANNER_HOME to a shorter path")
