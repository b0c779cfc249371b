"""What strangers do to files: valid JSON data with something changed, and text that is no JSON any more."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from hetplanner.errors import InvalidInput

ODD = [
    None,
    True,
    0,
    -1,
    10**400,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    " ",
    "0",
    "-1 ms",
    "nan s",
    "1e999 B",
    "5 parsecs",
    "10 Gbps",
    "1 Gbit/s",
    "two\nlines",
    "\u2028\u202e\x00\x1b[31m",
    "\ud800",
    "__import__('os')",
    "x" * 5000,
    [],
    {},
    [[]],
    {"": None},
    {"module": "os:system"},
]

_LEAVES = st.one_of(
    st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["float32", "a", "b"])
)
ODD_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
).map(copy.deepcopy)


def check_refusal(error: InvalidInput) -> None:
    """Every refusal is one short line."""
    assert str(error).isprintable()
    assert len(str(error)) < 1200


def read_or_refused(read: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """What is read, or None if it was refused properly; any other exception fails the test."""
    try:
        return read(*args, **kwargs)
    except InvalidInput as error:
        check_refusal(error)
        return None


def containers(data: Any) -> list[Any]:
    """All lists and objects in it that hold something, itself first."""
    found = [data]
    for item in found:
        children = item.values() if isinstance(item, dict) else item
        found += [child for child in children if isinstance(child, dict | list) and child]
    return found


@st.composite
def mutated(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """`valid` with one to three entries removed, renamed, doubled, moved or put to an odd value."""
    data = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        options = containers(data)
        inside = options[draw(st.integers(0, len(options) - 1))]
        if not inside:
            continue
        keys = sorted(inside) if isinstance(inside, dict) else range(len(inside))
        key = draw(st.sampled_from(keys))
        action = draw(st.sampled_from(["remove", "change", "add", "double", "swap"]))
        if action == "remove":
            del inside[key]
        elif action == "change":
            inside[key] = draw(ODD_VALUES)
        elif isinstance(inside, dict):
            inside[draw(st.text(max_size=8))] = copy.deepcopy(inside[key]) if action == "double" else draw(ODD_VALUES)
        elif action == "swap":
            other = draw(st.sampled_from(keys))
            inside[key], inside[other] = inside[other], inside[key]
        else:
            inside.insert(key, copy.deepcopy(inside[key]) if action == "double" else draw(ODD_VALUES))
    return data


@st.composite
def garbled(draw: st.DrawFn, valid: dict[str, Any]) -> str:
    """The text of `valid` with a piece cut out, doubled or overwritten."""
    text = json.dumps(valid)
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 40)))
    piece = draw(st.sampled_from(["", "[" * 60, '"', "\\", "1e999", "NaN", "\x00", "é", "}", text[start:end] * 2]))
    return text[:start] + piece + text[end:]
