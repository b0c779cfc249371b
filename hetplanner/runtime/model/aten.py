"""Aten calls by name, from the list that programs may hold, and numbers drawn without disturbing anyone."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hetplanner.errors import InvalidInput
from hetplanner.runtime.rng import RngKey, stable_seed
from hetplanner.workload.calls import ALLOWED_CALLS, GETITEM

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One overload.

    Attributes:
        positional: names and defaults of the arguments that may be given by place.
        keyword: names of those that may not.
    """

    function: Callable[..., Any]
    positional: tuple[tuple[str, Any], ...]
    keyword: frozenset[str]


def aten_call(name: str) -> AtenCall:
    """An overload such as `linear.default`.

    Raises:
        InvalidInput: the call is not on the list, or this version of torch has none of that name.
    """
    if name not in ALLOWED_CALLS:
        raise InvalidInput(f"program: call {name!r:.60} is not among those that the runtime performs")
    if name == GETITEM:
        return AtenCall(operator.getitem, (("self", None), ("index", 0)), frozenset())
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if function is None:
        raise InvalidInput(f"program: torch {torch.__version__} has no call {name}; use the version of the capture")
    arguments = function._schema.arguments
    return AtenCall(
        function,
        tuple((a.name, a.default_value) for a in arguments if not a.kwarg_only),
        frozenset(a.name for a in arguments if a.kwarg_only),
    )


@contextmanager
def drawing(key: RngKey, name: str, device: torch.device) -> Iterator[None]:
    """Inside, torch's own generator draws from (seed, step, micro-batch, name); outside it goes on as before."""
    generator = torch.default_generator
    if device.type == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    state = generator.get_state()
    generator.manual_seed(stable_seed(key.seed, key.step, key.micro_batch, name))
    try:
        yield
    finally:
        generator.set_state(state)
