"""Where runs and the agent live: `$HETPLANNER_HOME`, or the platform's data directory."""

import grp
import hashlib
import os
import pwd
import stat
import tempfile
from pathlib import Path

import platformdirs

from hetplanner.errors import InvalidInput, RunError

MAX_SOCKET_PATH_BYTES = 100
"""A Unix socket's path has 108 bytes on Linux and 104 on macOS, the final zero included."""

AGENT_FILE = "agent.json"
"""In the agent's directory: pid and version of who holds the lock."""


def home_directory() -> Path:
    """The directory of `runs/`, `plans/`, `drafts/`, `searches/`, `probes/` and `agent/`, absolute; perhaps missing."""
    text = os.environ.get("HETPLANNER_HOME")
    return Path(text).expanduser().absolute() if text else Path(platformdirs.user_data_path("hetplanner"))


def runs_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/runs`, created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "runs") if make else (home or home_directory()) / "runs"


def agent_directory(home: Path | None = None) -> Path:
    """`HOME/agent`: lock, log, audit log, `agent.json`; created (0700) when it is missing."""
    return _inside(home, "agent")


def plans_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/plans`: kept plans; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "plans") if make else (home or home_directory()) / "plans"


def drafts_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/drafts`: clusters that pages edit; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "drafts") if make else (home or home_directory()) / "drafts"


def searches_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/searches`: searches of pages; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "searches") if make else (home or home_directory()) / "searches"


def probes_directory(home: Path | None = None, *, make: bool = True) -> Path:
    """`HOME/probes`: what was measured on hosts; created (0700) when it is missing, unless only its path is wanted."""
    return _inside(home, "probes") if make else (home or home_directory()) / "probes"


def _inside(home: Path | None, name: str) -> Path:
    home = home or home_directory()
    if home.exists():  # it keeps the mode its owner gave it
        refuse_others(home, home.stat())
    else:
        private_directory(home)
    return private_directory(home / name)


def refuse_others(path: Path, info: os.stat_result) -> None:
    """Refuses to trust what another user owns or may write. Raises InvalidInput.

    Args:
        path: for the message.
        info: of the file or folder itself, once it is open, or where no other user can exchange it.
    """
    if info.st_uid != os.getuid():
        raise InvalidInput(f"{path}: belongs to {_user_name(info.st_uid)}, so it is not trusted; use one of your own")
    mode = stat.S_IMODE(info.st_mode)
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_private_group(info.st_gid)):
        raise InvalidInput(f"{path}: others may write it, so it is not trusted; run `chmod go-w {path}`")


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"


def _is_private_group(gid: int) -> bool:
    """Whether a group is this user's alone, as where every user has a group of the same name and umask 002."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and gid == user.pw_gid and set(group.gr_mem) <= {user.pw_name}


def private_directory(path: Path) -> Path:
    """Makes `path` a directory of this user that no other user can enter.

    Raises:
        InvalidInput: it belongs to another user, or is a link.
        RunError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            raise InvalidInput(f"{path}: must be a directory of your own; remove it or set HETPLANNER_HOME")
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
