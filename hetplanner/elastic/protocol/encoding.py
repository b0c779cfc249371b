"""Messages as plain JSON values and back: every field is checked against its declared type and a bound.

What comes in is data from strangers: nothing is executed, nothing is guessed, and whatever does not fit is refused
with the place and the law. Tuples are lists, a message is an object with its kind.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hetplanner.elastic.protocol.messages import Message
from hetplanner.errors import InvalidInput

MAX_TEXT = 2000
MAX_ITEMS = 100_000
MAX_INT = 2**63
KIND = "type"

Decoder = Callable[[Any, str], Any]


def encode_message(message: Message) -> dict[str, Any]:
    """The message as JSON values, with its kind."""
    return cast(dict[str, Any], _plain(message))


def decode_message(data: Any) -> Message:
    """The message that JSON values say.

    Raises:
        InvalidInput: it is none, or a field has another type or size than declared.
    """
    return cast(Message, _decoder(Message)(data, "message"))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {KIND: type(value).__name__} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if hasattr(value, "_fields") and type(value).__name__ == "View":  # the one message that is a tuple
        return {KIND: "View"} | {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, frozenset):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@cache
def _decoder(hint: Any) -> Decoder:
    """The check and conversion for a declared type."""
    origin = get_origin(hint)
    if hint in (int, float, str, bool, type(None)):
        return _SCALARS[hint]
    if origin is Literal:
        return _choice(get_args(hint))
    if origin in (Union, types.UnionType):
        return _union(get_args(hint))
    if origin in (tuple, frozenset):
        return _many(origin, get_args(hint)[0])
    if is_dataclass(hint) or hint.__name__ == "View":
        return _record(hint)
    return _named_tuple(hint)


def _refuse(place: str, law: str, value: Any) -> InvalidInput:
    return InvalidInput(f"{place}: {law}, got {value!r:.60}")


def _integer(value: Any, place: str) -> int:
    if type(value) is not int or not -MAX_INT <= value < MAX_INT:
        raise _refuse(place, "must be a whole number of at most 64 bits", value)
    return value


def _number(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _refuse(place, "must be a finite number", value)
    return float(value)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _refuse(place, f"must be text of at most {MAX_TEXT} characters", value)
    return value


def _truth(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(place, "must be true or false", value)
    return value


def _nothing(value: Any, place: str) -> None:
    if value is not None:
        raise _refuse(place, "must be null", value)


_SCALARS: dict[Any, Decoder] = {int: _integer, float: _number, str: _text, bool: _truth, type(None): _nothing}


def _choice(words: tuple[Any, ...]) -> Decoder:
    def decode(value: Any, place: str) -> Any:
        if value not in words or isinstance(value, bool):
            raise _refuse(place, f"must be one of {', '.join(map(str, words))}", value)
        return value

    return decode


def _union(hints: tuple[Any, ...]) -> Decoder:
    """Either null or one other type, or one of several messages by their kind."""
    others = [hint for hint in hints if hint is not type(None)]
    if len(others) == 1:
        inner = _decoder(others[0])
        return lambda value, place: None if value is None else inner(value, place)
    kinds = {hint.__name__: _decoder(hint) for hint in others}

    def decode(value: Any, place: str) -> Any:
        kind = value.get(KIND) if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise _refuse(place, f"{KIND} must be one of {', '.join(kinds)}", kind)
        return kinds[kind](value, f"{place}: {kind}")

    return decode


def _many(kind: type[Any], hint: Any) -> Decoder:
    inner = _decoder(hint)

    def decode(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise _refuse(place, f"must be a list of at most {MAX_ITEMS} items", value)
        return kind(inner(item, f"{place}[{i}]") for i, item in enumerate(value))

    return decode


def _record(cls: Any) -> Decoder:
    hints = get_type_hints(cls)
    inner = {name: _decoder(hint) for name, hint in hints.items()}
    wanted = {*inner, KIND}

    def decode(value: Any, place: str) -> Any:
        if not isinstance(value, dict) or value.keys() != wanted:
            raise _refuse(place, f"must be an object with the fields {', '.join(sorted(wanted))}", value)
        return cls(**{name: one(value[name], f"{place}.{name}") for name, one in inner.items()})

    return decode


def _named_tuple(cls: Any) -> Decoder:
    inner = [(name, _decoder(hint)) for name, hint in get_type_hints(cls).items()]

    def decode(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(inner):
            raise _refuse(place, f"must be a list of {len(inner)}", value)
        return cls(*(one(item, f"{place}.{name}") for (name, one), item in zip(inner, value, strict=True)))

    return decode
