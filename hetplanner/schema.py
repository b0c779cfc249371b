"""Files from strangers: size-capped JSON, one pydantic base with strict laws, errors that name the place.

Every file is JSON with `"format": "hetplanner/<noun>@<version>"`. Physical quantities are strings with
units (see `hetplanner.units`); the annotated types below parse and print them.
"""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)

from hetplanner import units
from hetplanner.atomic_files import write_whole
from hetplanner.errors import InvalidInput
from hetplanner.errors import one_line as one_line

MAX_FILE_BYTES = 64 * 2**20
"""Largest JSON file read; a 512-device cluster with every link given one by one is about 40 MB."""
MAX_DEPTH = 32
"""Deepest nesting read; our own files need 8."""
MAX_CONTAINERS = 1_000_000
"""Most lists and objects in a file: bounds the memory that a small text can blow up to."""
MAX_DIGITS = 40
"""Of a whole number, its sign included: far beyond any count or rate, and floats still hold it."""
_TOO_DEEP = f"{{place}}: must be nested at most {MAX_DEPTH} deep; is this one of our files?"


class Noun(BaseModel):
    """Base of every noun that is stored in a file: immutable, unknown fields and infinite numbers refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="null")

    def __eq__(self, other: object) -> bool:
        # By fields alone: pydantic's own also compares cached properties, and arrays have no single truth value.
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).model_fields)

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed. Raises InvalidInput."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return checked(type(self), values | changes, place=type(self).__name__.lower())


def _quantity(parse: Any, form: Any, least: float, most: float, example: str) -> Any:
    def read(value: object, info: ValidationInfo) -> float:
        # Python callers pass SI numbers; in a file a bare number has no unit and is refused by `parse`.
        in_file = bool(info.context and info.context.get("file"))
        given_si = isinstance(value, int | float) and not isinstance(value, bool) and not in_file
        number: float = value if given_si else parse(value)  # type: ignore[assignment]
        # A comparison with NaN is false, and one with a huge integer does not overflow as float() does.
        if not least <= number <= most:
            raise ValueError(_range_law(least, most, form, number) + f", got {value!r:.60}")
        return float(number)

    return Annotated[
        float,
        BeforeValidator(read),
        PlainSerializer(form, return_type=str, when_used="json"),
        WithJsonSchema({"type": "string", "examples": [example]}),
    ]


def _range_law(least: float, most: float, form: Any, value: float) -> str:
    if value <= 0 < least:
        return "must be above 0"
    if value < 0:
        return "must be 0 or more"
    return f"must be from {form(least)} to {form(most)}"


# The ranges are far beyond any machine; they catch slips of a unit and keep every later sum finite.
Seconds = _quantity(units.parse_seconds, units.format_seconds, 0.0, 1e6, "67 ms")
BytesPerSecond = _quantity(units.parse_bytes_per_s, units.format_bytes_per_s, 1.0, 1e15, "1.12 Gbit/s")
FlopsPerSecond = _quantity(units.parse_flops_per_s, units.format_flops_per_s, 1e3, 1e21, "125 TFLOP/s")
PositiveBytes = _quantity(units.parse_bytes, lambda v: units.format_bytes(round(v)), 1.0, 1e18, "16 GiB")
Bytes = _quantity(units.parse_bytes, lambda v: units.format_bytes(round(v)), 0.0, 1e18, "1 GiB")


def _plain_name(value: str) -> str:
    if not value.isprintable() or value.strip() != value:
        raise ValueError(f"must hold printable characters only, without blanks around it, got {value!r:.60}")
    return value


Name = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_plain_name)]
Text = Annotated[str, Field(max_length=4000)]

ModelT = TypeVar("ModelT", bound=BaseModel)


def checked(model: type[ModelT], data: object, place: str, *, from_file: bool = False) -> ModelT:
    """`data` as `model`; the first broken law as one line 'place: field: law'.

    Args:
        data: fields by name, or an instance.
        place: what to call the whole in messages (a file's name).
        from_file: quantities must be strings with units.

    Raises:
        InvalidInput: naming the path of the field inside `place`.
    """
    try:
        return model.model_validate(data, context={"file": from_file})
    except ValidationError as error:
        raise InvalidInput(_first_line(error, place)) from None


def _first_line(error: ValidationError, place: str) -> str:
    first, *rest = error.errors(include_url=False, include_context=False)
    # Keys come from the file, so they may be long or hold line breaks.
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p:.60}" for p in first["loc"]).lstrip(".")
    text = re.sub(r"^\w+ should", "must", first["msg"].removeprefix("Value error, "))
    if first["type"] == "extra_forbidden":
        text = "unknown field; remove it or correct its spelling"
    elif first["type"] == "missing":
        text = "required field is missing; add it"
    elif "got" not in text and not isinstance(first["input"], dict | list | tuple | BaseModel):
        text += f", got {first['input']!r:.80}"
    more = f" (and {len(rest)} more)" if rest else ""
    return one_line(": ".join(part for part in (place, path, text) if part) + more)


def _depth_is_fine(data: object) -> bool:
    """Whether containers nest at most MAX_DEPTH deep; level by level, so that no nesting exhausts the stack."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return True
    return False


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits, at most {MAX_DIGITS} are read; correct it")
    return int(digits)


def _no_constants(name: str) -> float:
    raise ValueError(f"{name} is not a number; every number must be finite")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"field {next(n for n in names if names.count(n) > 1)!r:.80} is given twice")
    return data


def parse_json(text: str | bytes, place: str) -> Any:
    """JSON data from a stranger's text: size, depth, finite numbers and unique fields are checked.

    Raises:
        InvalidInput: with `place` in front.
    """
    place = one_line(place)
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInput(
            f"{place}: must be at most {units.short_bytes(MAX_FILE_BYTES)}, got {units.short_bytes(len(text))}"
        )
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if not text.strip():
            raise InvalidInput(f"{place}: is empty, not JSON; write or save it again")
        if text.count("[") + text.count("{") > MAX_CONTAINERS:
            raise InvalidInput(f"{place}: must hold at most {MAX_CONTAINERS} lists and objects; is this our file?")
        data = json.loads(text, parse_int=_bounded, parse_constant=_no_constants, object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError:
        raise InvalidInput(f"{place}: must be UTF-8 text; is this one of our files?") from None
    except json.JSONDecodeError as error:
        hint = "; YAML is not read: save it as JSON" if place.endswith((".yaml", ".yml")) else ""
        raise InvalidInput(f"{place}:{error.lineno}: not JSON: {error.msg} (column {error.colno}){hint}") from None
    except RecursionError:
        raise InvalidInput(_TOO_DEEP.format(place=place)) from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(one_line(f"{place}: {error}")) from None
    if not _depth_is_fine(data):
        raise InvalidInput(_TOO_DEEP.format(place=place))
    return data


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most `max_bytes`. Raises InvalidInput (missing, a folder, too large)."""
    file, place = Path(path), one_line(str(path))
    try:
        if not file.is_file():
            raise InvalidInput(f"{place}: " + ("not a regular file" if file.exists() else "no such file"))
        if file.stat().st_size > max_bytes:
            raise InvalidInput(
                f"{place}: must be at most {units.short_bytes(max_bytes)}, is {units.short_bytes(file.stat().st_size)}"
            )
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{place}: cannot be read: {error.strerror}") from None
    except InvalidInput:
        raise
    except ValueError:  # a null byte in the path
        raise InvalidInput(f"{place}: no such file") from None


def utf8_text(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a regular file, as `read_text`. Raises InvalidInput, also for what is no UTF-8."""
    try:
        return read_text(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"{one_line(str(path))}: must be UTF-8 text; save it as such") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file, replacing the one before whole or not at all. Raises InvalidInput if it cannot be written."""
    file = Path(path)
    try:
        write_whole(file, text)
    except OSError as error:
        raise InvalidInput(one_line(f"{path}: cannot be written: {error.strerror}")) from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuses a path that could not be written after long work. Raises InvalidInput."""
    file = Path(path)
    folder = file.absolute().parent
    if file.is_dir():
        raise InvalidInput(one_line(f"{path}: cannot be written: it is a folder"))
    if not folder.is_dir():
        raise InvalidInput(one_line(f"{path}: cannot be written: there is no folder {folder}"))
    if not os.access(folder, os.W_OK):
        raise InvalidInput(one_line(f"{path}: cannot be written: folder {folder} is not writable"))


def check_format(data: object, noun: str, version: int, place: str) -> dict[str, Any]:
    """The fields of a file of ours, without its `format`. Raises InvalidInput (another noun, a newer version)."""
    if not isinstance(data, dict):
        raise InvalidInput(f"{place}: must be a JSON object, got {type(data).__name__}")
    text = data.get("format")
    wanted = " or ".join(f"'hetplanner/{noun}@{number}'" for number in range(1, version + 1))
    if text is None:
        raise InvalidInput(f"{place}: format: required field is missing; a {noun} file says {wanted} there")
    head, _, number = str(text).partition("@")
    if head != f"hetplanner/{noun}" or not re.fullmatch("[1-9][0-9]{0,5}", number):
        raise InvalidInput(f"{place}: format: must be {wanted}, got {text!r:.80}; is this a {noun} file?")
    if int(number) > version:
        raise InvalidInput(
            f"{place}: format: {text!r:.80} is newer than this hetplanner reads ({wanted}); upgrade hetplanner"
        )
    return {key: value for key, value in data.items() if key != "format"}


def checked_json(
    model: type[ModelT], text: str | bytes, noun: str, version: int, place: str, *, from_file: bool = False
) -> ModelT:
    """A JSON file of ours as `model`: its `format` says `noun` and at most `version`. Otherwise as `checked`."""
    return checked(model, check_format(parse_json(text, place), noun, version, place), place, from_file=from_file)
