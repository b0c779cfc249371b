"""Files from strangers: size-capped JSON, one pydantic base with strict laws, errors that name the place.

Every file is JSON with `"format": "hetplanner/<noun>@<version>"`. Physical quantities are strings with
units (see `hetplanner.units`); the annotated types below parse and print them.
"""

import json
import math
import os
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
from hetplanner.errors import InvalidInput

MAX_FILE_BYTES = 64 * 2**20
"""Largest JSON file read; a 512-device cluster with every link given one by one is about 40 MB."""
MAX_DEPTH = 32
"""Deepest nesting read; our own files need 8."""


class Noun(BaseModel):
    """Base of every noun that is stored in a file: immutable, unknown fields refused, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="null")

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed. Raises InvalidInput."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return checked(type(self), values | changes, place=type(self).__name__.lower())


def _quantity(parse: Any, form: Any, law: Any, example: str) -> Any:
    def read(value: object, info: ValidationInfo) -> object:
        # Python callers pass SI numbers; in a file a bare number has no unit and is refused by `parse`.
        in_file = bool(info.context and info.context.get("file"))
        if isinstance(value, int | float) and not isinstance(value, bool) and not in_file:
            return law(float(value))
        return law(parse(value))

    return Annotated[
        float,
        BeforeValidator(read),
        PlainSerializer(form, return_type=str, when_used="json"),
        WithJsonSchema({"type": "string", "examples": [example]}),
    ]


def _positive(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"must be above 0, got {value:g}")
    return value


def _not_negative(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"must be 0 or more, got {value:g}")
    return value


Seconds = _quantity(units.parse_seconds, units.format_seconds, _not_negative, "67 ms")
BytesPerSecond = _quantity(units.parse_bytes_per_s, units.format_bytes_per_s, _positive, "1.12 Gbit/s")
FlopsPerSecond = _quantity(units.parse_flops_per_s, units.format_flops_per_s, _positive, "125 TFLOP/s")
PositiveBytes = _quantity(units.parse_bytes, lambda v: units.format_bytes(int(v)), _positive, "16 GiB")
Bytes = _quantity(units.parse_bytes, lambda v: units.format_bytes(int(v)), _not_negative, "1 GiB")

_FORBIDDEN_IN_NAMES = set("\x00\n\r\t")


def _plain_name(value: str) -> str:
    if _FORBIDDEN_IN_NAMES & set(value):
        raise ValueError("must not hold control characters")
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
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        text = "unknown field; remove it or correct its spelling"
    elif first["type"] == "missing":
        text = "required field is missing; add it"
    elif "got" not in text and not isinstance(first["input"], dict | list | BaseModel):
        text += f", got {first['input']!r:.80}"
    more = f" (and {len(rest)} more)" if rest else ""
    return ": ".join(part for part in (place, path, text) if part) + more


def _depth_is_fine(text: str) -> bool:
    depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return False
        elif char in "]}":
            depth -= 1
    return True


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
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInput(f"{place}: must be at most {MAX_FILE_BYTES >> 20} MiB, got {len(text) >> 20} MiB")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if not _depth_is_fine(text):
            raise InvalidInput(f"{place}: must be nested at most {MAX_DEPTH} deep; is this one of our files?")
        return json.loads(text, parse_constant=_no_constants, object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError:
        raise InvalidInput(f"{place}: must be UTF-8 text; is this one of our files?") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{place}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{place}: {error}") from None


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file of at most `max_bytes`. Raises InvalidInput (missing, a folder, too large)."""
    file = Path(path)
    try:
        if not file.is_file():
            raise InvalidInput(
                f"{file}: no such file" if not file.exists() else f"{file}: not a regular file"
            )
        if file.stat().st_size > max_bytes:
            raise InvalidInput(
                f"{file}: must be at most {max_bytes >> 20} MiB, is {file.stat().st_size >> 20} MiB"
            )
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from None


def check_format(data: object, noun: str, version: int, place: str) -> dict[str, Any]:
    """The fields of a file of ours, without its `format`. Raises InvalidInput (another noun, a newer version)."""
    if not isinstance(data, dict):
        raise InvalidInput(f"{place}: must be a JSON object, got {type(data).__name__}")
    text = data.get("format")
    wanted = f"hetplanner/{noun}@{version}"
    if text is None:
        raise InvalidInput(
            f'{place}: format: required field is missing; a {noun} file starts with "format": "{wanted}"'
        )
    head, _, number = str(text).partition("@")
    if head != f"hetplanner/{noun}" or not number.isdecimal() or not 0 < int(number[:6]):
        raise InvalidInput(f"{place}: format: must be '{wanted}', got {text!r:.80}")
    if int(number[:6]) > version:
        raise InvalidInput(
            f"{place}: format: {text!r:.80} is newer than this hetplanner reads ('{wanted}'); upgrade hetplanner"
        )
    return {key: value for key, value in data.items() if key != "format"}
