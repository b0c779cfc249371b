"""Profile files: `hetplanner/profile@1` and `@2` (with collectives), JSON with unit strings; several become one."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.profiles.model import Profile
from hetplanner.reading import note, reader
from hetplanner.schema import checked_json, one_line, read_text, write_text

PROFILE_VERSION = 2
LAYERS_VERSION = 1


@reader("profile file", at="place")
def profile_from_json(text: str | bytes, place: str = "profile") -> Profile:
    """A profile from the text of a profile file. Raises InvalidInput naming the field inside `place`."""
    return checked_json(Profile, text, "profile", PROFILE_VERSION, place, from_file=True)


@reader("profile file", at="path")
def load_profile(path: str | os.PathLike[str]) -> Profile:
    """A profile from a file. Raises InvalidInput."""
    return profile_from_json(read_text(path), one_line(Path(path).name))


def load_profiles(paths: Sequence[str | os.PathLike[str]]) -> Profile:
    """One profile from several files of the same model; a torch of another version than here is noted.

    Raises:
        InvalidInput: one cannot be read, or they are of unlike models.
    """
    profile = merge_profiles([load_profile(path) for path in paths])
    if profile.torch is not None:
        with suppress(PackageNotFoundError):
            here = version("torch").split("+")[0]
            if here.split(".")[:2] != profile.torch.split(".")[:2]:
                note(
                    f"profile {profile.name!r:.60}: was measured with torch {profile.torch}, here is {here};"
                    " its seconds may differ, profile the model anew to be sure"
                )
    return profile


def profile_to_data(profile: Profile) -> dict[str, Any]:
    """The profile file's content as plain data."""
    number = PROFILE_VERSION if profile.collectives else LAYERS_VERSION
    return {"format": f"hetplanner/profile@{number}"} | profile.model_dump(mode="json", exclude_none=True)


def profile_to_json(profile: Profile) -> str:
    """The profile file's content: one row a line."""
    data = profile_to_data(profile)
    lists = {name: data.pop(name) for name in ("collectives", "rows") if name in data}
    head = json.dumps(data, indent=1, ensure_ascii=False).removesuffix("\n}")
    tables = (
        f' "{name}": [\n  ' + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n ]"
        for name, rows in lists.items()
    )
    return ",\n".join((head, *tables)) + "\n}\n"


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a profile file. Raises InvalidInput if the path cannot be written."""
    write_text(path, profile_to_json(profile))


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """One profile with the rows of several of the same model, such as one for each kind of device.

    Raises:
        InvalidInput: if they are of unlike models or formats, or two have the same row.
    """
    first, *others = profiles
    rows, sources = list(first.rows), [first.source]
    collectives = [row for profile in profiles for row in profile.collectives]
    for other in others:
        for name in ("num_params", "num_trained", "seq_len", "dtype", "optimizer", "layers"):
            if getattr(other, name) != getattr(first, name):
                raise InvalidInput(
                    f"profiles {first.name!r:.60} and {other.name!r:.60}: must be of one model; {name} is"
                    f" {getattr(first, name)!s:.60} and {getattr(other, name)!s:.60}"
                )
        rows += other.rows
        sources.append(other.source)
    if not others:
        return first
    versions = {profile.torch for profile in profiles}
    return first.replace(
        name=" + ".join(dict.fromkeys(profile.name for profile in profiles))[:120].strip(),
        rows=tuple(rows),
        collectives=tuple(collectives),
        source="; ".join(dict.fromkeys(filter(None, sources)))[:4000],
        torch=versions.pop() if len(versions) == 1 else None,
    )
