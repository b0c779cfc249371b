"""One setting as a person sees it: its name, its law, and the way between what is typed and what is meant."""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from hetplanner.errors import InvalidInput
from hetplanner.planners.interface import NO_FIELD, TAKES_CORES
from hetplanner.planners.registry import planner_type

Kind = Literal["whole", "number", "choice", "many", "flag", "names", "pins"]
MAX_TYPED = 20_000
"""Characters read of one field; a list of 1024 device names has about as many."""
_WHOLE = re.compile(r"[+-]?\d{1,18}")


@dataclass(frozen=True)
class Setting:
    """One field of a form.

    Attributes:
        kind: whole and number are typed; choice is one of `options`, many any of them; names are devices, separated by
            commas; pins such as 'd0: 3'.
        options: value and what it is called.
        low, high: least and greatest value; `above` leaves `low` itself out.
        empty: what an empty field says; it stands for 0 (whole) or none (names, pins).
        takes_cores: whether a greater value takes more of the machine.
    """

    name: str
    label: str
    kind: Kind
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    empty: str = ""
    wide: bool = False
    takes_cores: bool = False

    def shown(self, value: Any) -> Any:
        """What the form shows for a value: text, a flag, or a list of options."""
        if self.kind == "whole":
            return "" if self.empty and value == 0 else str(value)
        if self.kind == "number":
            return str(float(value))
        if self.kind == "names":
            return ", ".join(value)
        if self.kind == "pins":
            return ", ".join(f"{device}: {stage}" for device, stage in value.items())
        return list(value) if self.kind == "many" else value

    def parse(self, raw: object) -> Any:
        """The value that was meant. Raises InvalidInput with a law that a person can follow."""
        if self.kind == "flag":
            return raw is True
        if self.kind == "many":
            chosen = {str(item) for item in raw} if isinstance(raw, list) else set()
            return [value for value, _ in self.options if value in chosen]
        text = str(raw)[:MAX_TYPED].strip()
        if self.kind == "choice":
            if text not in dict(self.options):
                raise InvalidInput(f"must be one of {', '.join(dict(self.options))}, got {text!r:.60}")
            return text
        if self.kind in ("names", "pins"):
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return list(dict.fromkeys(parts)) if self.kind == "names" else dict(map(_pin, parts))
        return self._number(text)

    def _number(self, text: str) -> float | int:
        if self.empty and not text:
            return 0
        what = "a whole number" if self.kind == "whole" else "a number"
        try:
            value = int(text) if self.kind == "whole" and _WHOLE.fullmatch(text) else float(text)
        except ValueError:
            raise InvalidInput(f"must be {what}, got {text!r:.60}") from None
        if not math.isfinite(value) or (self.kind == "whole" and not isinstance(value, int)):
            raise InvalidInput(f"must be {what}, got {text!r:.60}")
        if value < self.low or value > self.high or (self.above and value == self.low):
            raise InvalidInput(f"must be {self.range_text}, got {text:.60}")
        return value

    @property
    def range_text(self) -> str:
        """The law of a number, such as 'from 1 to 64'."""
        least = f"above {_plain(self.low)}" if self.above else f"from {_plain(self.low)}"
        if math.isinf(self.high):
            return least if self.above else f"at least {_plain(self.low)}"
        return f"{least} to {_plain(self.high)}" if not self.above else f"{least}, at most {_plain(self.high)}"

    def to_data(self) -> dict[str, Any]:
        """What the page draws it from."""
        hint = self.hint
        if self.kind in ("whole", "number") and not math.isinf(self.low):
            hint = f"{hint} ({self.range_text})" if hint else self.range_text
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "hint": hint,
            "options": [list(option) for option in self.options],
            "empty": self.empty,
            "wide": self.wide or self.kind in ("many", "names", "pins"),
        }


def _plain(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _pin(part: str) -> tuple[str, int]:
    device, colon, stage = part.rpartition(":")
    if not colon or not re.fullmatch(r"\d{1,6}", stage.strip()):
        raise InvalidInput(f"must be devices with their stages, such as 'd0: 0, d5: 3', got {part!r:.60}")
    return device.strip(), int(stage)


def planner_fields(planner: str) -> tuple[Setting, ...]:
    """A planner's own settings, as its class declares them."""
    fields = planner_type(planner).settings_type.model_fields.items()
    return tuple(_of(name, info) for name, info in fields if info.json_schema_extra != NO_FIELD)


def _of(name: str, info: FieldInfo) -> Setting:
    common: dict[str, Any] = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "hint": info.description or "",
        "takes_cores": info.json_schema_extra == TAKES_CORES,
    }
    if get_origin(info.annotation) is Literal:
        return Setting(kind="choice", options=tuple((o, o) for o in get_args(info.annotation)), **common)
    if info.annotation is bool:
        return Setting(kind="flag", **common)
    for law in info.metadata:
        if isinstance(law, annotated_types.Ge):
            common["low"] = law.ge
        elif isinstance(law, annotated_types.Gt):
            common |= {"low": law.gt, "above": True}
        elif isinstance(law, annotated_types.Le):
            common["high"] = law.le
    if info.annotation not in (int, float):
        raise TypeError(f"no field is known for a setting of type {info.annotation}")
    return Setting(kind="whole" if info.annotation is int else "number", **common)


def planner_defaults(planner: str) -> dict[str, Any]:
    """Value of every setting of a planner unless it is changed."""
    fields = planner_type(planner).settings_type.model_fields.items()
    return {name: info.default for name, info in fields if info.json_schema_extra != NO_FIELD}
