"""What a host says of itself before a run starts there. Runs on the host; imports nothing but the standard library."""

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

NVIDIA_SMI_S = 10.0
MAX_GPU_TEXT = 50_000
SAMPLE_BYTES = 2**16
"""Of a file's beginning and end, which stand for it."""
MAX_FILES = 200_000
CHECKPOINTS = "checkpoints"
MAX_STAGE_FILES = 10_000


def facts(asked: dict[str, Any]) -> dict[str, Any]:
    """What the head wants to know, see `checks.Facts`.

    Args:
        asked: address, port (None: of no concern here), data (None: this host reads none), gpus (whether to look for
            some), folder (of this host's runs), resume (a run's name or None), swarm (its name again, where it may be
            a swarm, or None).
    """
    folder = Path(asked["folder"]).expanduser()
    return {
        "hetplanner": _version("hetplanner"),
        "torch": _version("torch"),
        "python": ".".join(map(str, sys.version_info[:2])),
        "system": sys.platform,
        **_network(asked["address"], asked["port"]),
        **(_data(asked["data"]) if asked["data"] is not None else {}),
        "gpus": _gpus() if asked["gpus"] else "",
        **_disk(folder),
        "checkpoints": _checkpoints(folder / asked["resume"]) if asked["resume"] else {},
        "stage_files": _stage_files(folder / asked["swarm"]) if asked.get("swarm") else [],
        "unix_s": time.time(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# -- network --------------------------------------------------------------------------------------


def _network(address: str, port: int | None) -> dict[str, Any]:
    """The address as a number, whether it is this host's, and whether its port is free."""
    try:
        number = socket.gethostbyname(address)
    except OSError as error:
        return {"address_error": f"has no IPv4 address here: {error.strerror or error}"}
    found: dict[str, Any] = {"address": number}
    if why := why_not_bound(number, 0):
        return found | {"address_error": why}
    if port is not None and (why := why_not_bound(number, port)):
        found["port_error"] = why
    return found


def why_not_bound(address: str, port: int) -> str:
    """Why this host cannot listen there; empty where it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def listener(address: str) -> socket.socket:
    """A socket at a free port of an address, at which other hosts try whether they reach this one. Raises OSError."""
    found = socket.create_server((address, 0), backlog=128)
    found.setblocking(False)
    return found


def answer(door: socket.socket, token: str) -> None:
    """Gives the token to all who have come."""
    with contextlib.suppress(OSError):
        while True:
            guest, _ = door.accept()
            with guest:
                guest.sendall(token.encode())


def why_not_reached(address: str, port: int, token: str, timeout_s: float) -> str:
    """Why a host does not answer there as itself; empty where it does."""
    try:
        with socket.create_connection((address, port), timeout_s) as door:
            door.settimeout(timeout_s)
            said = b""
            while len(said) < len(token) and (part := door.recv(256)):
                said += part
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return "" if said == token.encode() else "another machine answers there"


# -- data, GPUs, disk -----------------------------------------------------------------------------


def _data(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands for the data, or why there is none."""
    if asked["kind"] == "digits":
        version = _version("scikit-learn")
        return {"data": f"scikit-learn {version}"} if version else {"data_error": "scikit-learn is not installed"}
    path = Path(sysconfig.get_path("stdlib")) if asked["kind"] == "sources" else Path(asked["path"]).expanduser()
    try:
        return {"data": _mark_of_folder(path) if path.is_dir() else _mark_of_file(path)}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return {"data_error": f"{path}: {why}"}


def _mark_of_file(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
        file.seek(max(0, size - SAMPLE_BYTES))
        sample += file.read(SAMPLE_BYTES)
    return f"{size} bytes, {hashlib.sha256(sample).hexdigest()[:16]}"


def _mark_of_folder(path: Path) -> str:
    digest, count, total = hashlib.sha256(), 0, 0
    for name, size in _files(path):
        digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
        count, total = count + 1, total + size
        if count >= MAX_FILES:
            break
    return f"{count} files, {total} bytes, {digest.hexdigest()[:16]}"


def _files(root: Path) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("site-packages", "dist-packages", "__pycache__"))
        for name in sorted(names):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                yield os.path.relpath(path, root), os.stat(path).st_size


def _gpus() -> str:
    """What `nvidia-smi -L` prints; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_S, errors="replace", check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:MAX_GPU_TEXT] if done.returncode == 0 else ""


def _disk(folder: Path) -> dict[str, Any]:
    """Free bytes of the disk that runs will be written to; nothing is made yet."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            return {"folder_error": f"{folder}: {there} is no folder that may be written"}
        return {"free_bytes": shutil.disk_usage(there).free}
    except OSError as error:
        return {"folder_error": f"{folder}: {error.strerror}"}


def _checkpoints(run_dir: Path) -> dict[int, list[int]]:
    """By step of a run's finished checkpoints, the latest first: the ranks whose parts are here."""
    found = {}
    with contextlib.suppress(OSError):
        for path in (run_dir / CHECKPOINTS).iterdir():
            step = path.name.removeprefix("step-")
            if step.isdecimal() and (path / "manifest.json").is_file():
                ranks = [part.stem.removeprefix("rank-") for part in path.glob("rank-*.safetensors")]
                found[int(step)] = sorted(int(rank) for rank in ranks if rank.isdecimal())
    return dict(sorted(found.items(), reverse=True)[:100])


def _stage_files(run_dir: Path) -> list[str]:
    """Names of the checkpoints that peers of a swarm have written here, the latest last."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in (run_dir / CHECKPOINTS).glob("stage-*.safetensors"))[-MAX_STAGE_FILES:]
    return []
