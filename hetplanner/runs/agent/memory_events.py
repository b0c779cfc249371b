"""Whether the kernel has ended processes for lack of memory: its own counters, read before and after."""

from collections.abc import Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def oom_kills() -> dict[str, int]:
    """Counters of processes ended for lack of memory, by the file that tells: of our control group, of the machine.

    Empty where none can be read.
    """
    files = [*_cgroup_files(), VMSTAT]
    return {str(path): count for path in files if (count := _count(path)) is not None}


def new_oom_kills(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What the counters tell that both looks have: empty where none rose."""
    risen = [
        f"{name}: oom_kill {before[name]} to {count}"
        for name, count in after.items()
        if before.get(name, count) < count
    ]
    return risen[0] if risen else ""


def _cgroup_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            found.append(CGROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
    return found


def _count(path: Path) -> int | None:
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
