"""Kept plans: plan files with safe names in `HOME/plans`, one plan a file, never overwritten.

Several pages (and people's own tools) may look at the folder at once: a file is written whole or not at all, and
only under a name that is free, so no page can lose another's plan.
"""

import json
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput
from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan, plan_to_data
from hetplanner.runs.home import plans_directory

MAX_KEPT = 100
MAX_NAME = 60
_SAFE = re.compile(r"[^\W_][\w .+=()×-]*")
_REMEMBERED = 24


@dataclass(frozen=True)
class KeptPlan:
    """A file of the store. `stamp` changes when the file does."""

    name: str
    kept_s: float
    stamp: tuple[int, int]


class PlanStore:
    """The kept plans of a home. Nothing is made on disk before the first plan is kept."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._read: OrderedDict[tuple[str, tuple[int, int]], AnyPlan] = OrderedDict()

    def kept(self) -> list[KeptPlan]:
        """What there is, newest first."""
        found = []
        folder = plans_directory(self._home, make=False)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name, suffix = os.path.splitext(entry.name)
                    if suffix == ".json" and is_safe(name) and entry.is_file(follow_symlinks=False):
                        info = entry.stat(follow_symlinks=False)
                        found.append(KeptPlan(name, info.st_mtime, (info.st_mtime_ns, info.st_size)))
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda each: (-each.kept_s, each.name))

    def load(self, name: str) -> AnyPlan:
        """A kept plan. Raises InvalidInput (not there, or not a plan file)."""
        path = self._path(name)
        try:
            info = path.stat()
        except OSError:
            raise InvalidInput(f"kept plans: there is no {name!r:.80} any more; it was deleted or renamed") from None
        key = name, (info.st_mtime_ns, info.st_size)
        if key not in self._read:
            self._read[key] = load_any_plan(path)
            if len(self._read) > _REMEMBERED:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return self._read[key]

    def keep(self, plan: AnyPlan, name: str) -> str:
        """Writes a plan under a name that is free, and gives the name. Raises InvalidInput."""
        name = checked_name(name)
        if len(self.kept()) >= MAX_KEPT:
            raise InvalidInput(f"kept plans: there are {MAX_KEPT} already; delete some first")
        plans_directory(self._home)
        try:
            write_whole(self._path(name), json.dumps(plan_to_data(plan), indent=1) + "\n", replace=False)
        except FileExistsError:
            raise InvalidInput(_TAKEN.format(name=name)) from None
        except OSError as error:
            raise InvalidInput(f"kept plans: {name!r:.80} cannot be written: {error.strerror}") from None
        return name

    def rename(self, name: str, new: str) -> str:
        """Another name, if it is free. Raises InvalidInput."""
        new = checked_name(new)
        if new == name:
            return name
        try:
            os.link(self._path(name), self._path(new))
            self._path(name).unlink()
        except FileExistsError:
            raise InvalidInput(_TAKEN.format(name=new)) from None
        except OSError as error:
            raise InvalidInput(f"kept plans: {name!r:.80} cannot be renamed: {error.strerror}") from None
        return new

    def delete(self, name: str) -> AnyPlan:
        """Removes a plan and gives it back, so that this can be undone. Raises InvalidInput."""
        plan = self.load(name)
        self._path(name).unlink(missing_ok=True)
        return plan

    def discard(self, name: str) -> None:
        """Removes a file that is no plan any more. Raises InvalidInput."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise InvalidInput(f"kept plans: {name!r:.80} cannot be deleted: {error.strerror}") from None

    def free_name(self, wanted: str) -> str:
        """A safe name like this one that no kept plan has: 'it', 'it 2', 'it 3', …"""
        base = safe_name(wanted)
        taken = {each.name.casefold() for each in self.kept()}
        names = (base if n == 1 else f"{base[: MAX_NAME - 4]} {n}" for n in range(1, MAX_KEPT + 2))
        return next(name for name in names if name.casefold() not in taken)

    def _path(self, name: str) -> Path:
        return plans_directory(self._home, make=False) / f"{checked_name(name)}.json"


_TAKEN = "name: a plan called {name!r} is kept already; choose another name or rename that one"


def is_safe(name: str) -> bool:
    """Whether a name can be a file's on every system, and nothing but one."""
    return len(name) <= MAX_NAME and name == name.strip() and not name.endswith(".") and bool(_SAFE.fullmatch(name))


def checked_name(name: str) -> str:
    """A name without blanks around it. Raises InvalidInput if it is not safe."""
    name = name.strip()
    if not is_safe(name):
        raise InvalidInput(
            f"name: must be 1 to {MAX_NAME} letters, digits, blanks or . _ - + = ( ) ×, and start with a letter or"
            f" digit, got {name!r:.70}"
        )
    return name


def safe_name(text: str) -> str:
    """The nearest safe name."""
    name = re.sub(r"[^\w .+=()×-]+", " ", text)
    name = re.sub(r"\s+", " ", name).lstrip(" ._+=()×-")[:MAX_NAME].rstrip(" .")
    return name if is_safe(name) else "plan"
