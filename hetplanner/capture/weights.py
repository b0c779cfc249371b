"""Building a module without its weights: parameters become fake tensors, and how they were filled is recorded.

The user's factory runs as usual, but every parameter that a module registers is swapped for a fake tensor of its
shape, so that a model of any size is built in little memory; buffers stay real. While it runs, every call that fills
a tensor is noted by the storage it writes to: what a parameter was filled with before it was registered (`randn(...) *
0.02`) and afterwards (`nn.init`). A stage can then fill any parameter from a seed, without the model's code.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from hetplanner.errors import InvalidInput
from hetplanner.workload.program import INIT_CALLS, MAX_BUFFER_VALUES, RANDOM_INIT_CALLS, InitCall

_CREATED: dict[str, Callable[..., InitCall | None]] = {
    "empty": lambda *_: None,
    "empty_strided": lambda *_: None,
    "new_empty": lambda *_: None,
    "empty_like": lambda *_: None,
    "zeros": lambda *_: InitCall(call="zero_"),
    "new_zeros": lambda *_: InitCall(call="zero_"),
    "zeros_like": lambda *_: InitCall(call="zero_"),
    "ones": lambda *_: InitCall(call="fill_", args=(1.0,)),
    "new_ones": lambda *_: InitCall(call="fill_", args=(1.0,)),
    "ones_like": lambda *_: InitCall(call="fill_", args=(1.0,)),
    "full": lambda _, value: InitCall(call="fill_", args=(float(value),)),
    "new_full": lambda _, __, value: InitCall(call="fill_", args=(float(value),)),
    "full_like": lambda _, value: InitCall(call="fill_", args=(float(value),)),
    "randn": lambda *_: InitCall(call="normal_", args=(0.0, 1.0)),
    "randn_like": lambda *_: InitCall(call="normal_", args=(0.0, 1.0)),
    "rand": lambda *_: InitCall(call="uniform_", args=(0.0, 1.0)),
    "rand_like": lambda *_: InitCall(call="uniform_", args=(0.0, 1.0)),
}
"""Calls that make a tensor, and what they fill it with."""

_SAME_VALUES = frozenset(("detach", "alias", "clone", "_to_copy", "constant_pad_nd"))
"""Calls whose result holds the same values, if it has as many."""
_OVERWRITES = frozenset((*RANDOM_INIT_CALLS, "fill_", "zero_", "values_"))


@dataclass(frozen=True, slots=True)
class _Story:
    """How one storage was filled; `lost` names the call that cannot be told in numbers."""

    calls: tuple[InitCall, ...] = ()
    lost: str | None = None

    def then(self, call: InitCall | None) -> "_Story":
        return _Story(self.calls + ((call,) if call else ()), self.lost)


@dataclass(slots=True)
class _Told:
    """The story of a storage; a parameter and its fake share one, for code that fills either of them."""

    story: _Story


class _Recorder(TorchDispatchMode):
    """Notes, by storage, the calls that fill tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[int, _Told] = {}

    def of(self, tensor: Tensor) -> _Story:
        told = self._told.get(_storage(tensor))
        return told.story if told else _Story(lost="values from elsewhere")

    def tell(self, tensor: Tensor, story: _Story) -> None:
        self._told.setdefault(_storage(tensor), _Told(story)).story = story

    def begin(self, tensor: Tensor, story: _Story) -> None:
        # An address of freed memory may be used again; what is made anew shares no story.
        self._told[_storage(tensor)] = _Told(story)

    def join(self, fake: Tensor, real: Tensor) -> None:
        told = self._told.setdefault(_storage(real), _Told(self.of(real)))
        self._told[_storage(fake)] = told
        weakref.finalize(real, self._part, _storage(real), told)

    def _part(self, key: int, told: _Told) -> None:
        if self._told.get(key) is told:
            del self._told[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._note(func._schema.name.removeprefix("aten::"), args, kwargs or {}, result)
        return result

    def _note(self, name: str, args: Any, kwargs: Any, result: Tensor) -> None:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "lift_fresh":  # torch.tensor(...): made of numbers, unseen until here
            self.begin(result, _Story(lost="torch.tensor"))
        elif first is not None and _storage(first) == _storage(result):
            if name.endswith("_") and not name.endswith("__"):
                self.call(first, name, args, kwargs)
        elif name in _CREATED:
            self.begin(result, _created(name, args))
        elif first is not None and name in _SAME_VALUES and first.numel() == result.numel():
            self.begin(result, self.of(first))
        elif first is not None and first.shape == result.shape:
            self.begin(result, self._after(self.of(first), f"{name}_", args, kwargs, result))
        else:
            self.begin(result, _Story(lost=name))

    def call(self, written: Tensor, name: str, args: Any, kwargs: Any) -> None:
        """Notes a call that writes to a tensor."""
        self.tell(written, self._after(self.of(written), name, args, kwargs, written))

    def _after(self, story: _Story, name: str, args: Any, kwargs: Any, written: Tensor) -> _Story:
        whole = _is_whole(written)
        if name == "copy_" and isinstance(args[1], Tensor):
            source = self.of(args[1])
            if source.lost is None and whole and args[1].shape == written.shape:
                return source
            numbers = _values_of(args[1].expand(written.shape))
        else:
            numbers = _numbers(name, args[1:], kwargs)
        if numbers is None:
            return _Story(lost=f"{name} with tensors" if name in INIT_CALLS else name)
        call, values = numbers
        view = None if whole else (written.storage_offset(), tuple(written.shape), tuple(written.stride()))
        return (_Story() if whole and call in _OVERWRITES else story).then(InitCall(call=call, args=values, view=view))


@contextmanager
def _whole_trunc_normal(recorder: _Recorder) -> Iterator[None]:
    """`nn.init.trunc_normal_` is noted as one call: torch draws again until all fits, which no fake tensor can."""
    original = nn.init._no_grad_trunc_normal_

    def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(tensor, FakeTensor):
            original(tensor, *args, **kwargs)
        numbers = {key: value for key, value in kwargs.items() if key != "generator"}
        recorder.call(tensor, "trunc_normal_", (tensor, *args[:4]), numbers)
        return tensor

    nn.init._no_grad_trunc_normal_ = noted
    try:
        yield
    finally:
        nn.init._no_grad_trunc_normal_ = original


def _created(name: str, args: Any) -> _Story:
    try:
        return _Story().then(_CREATED[name](*args))
    except (TypeError, ValueError):
        return _Story(lost=name)


def _numbers(name: str, rest: Any, kwargs: Any) -> tuple[str, tuple[float, ...]] | None:
    """The call and its numbers, if it is one that a stage can repeat."""
    values = [v.item() if isinstance(v, Tensor) and v.ndim == 0 and not isinstance(v, FakeTensor) else v for v in rest]
    values += [v for key, v in kwargs.items() if key not in ("generator", "dtype", "device", "layout", "pin_memory")]
    if name == "clamp_":
        low, high = (*values, None, None)[:2]
        if low is None or high is None:
            name, values = ("clamp_max_", [high]) if low is None else ("clamp_min_", [low])
    if name in ("normal_", "uniform_") and len(values) < 2:
        values = [*values, *((0.0, 1.0)[len(values) :])]
    values = [v for v in values if v is not None]
    if name not in INIT_CALLS or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        return None
    return name, tuple(float(v) for v in values)


def _values_of(tensor: Tensor) -> tuple[str, tuple[float, ...]] | None:
    """The values themselves, if they are there and few."""
    if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MAX_BUFFER_VALUES:
        return None
    return "values_", tuple(float(v) for v in tensor.detach().reshape(-1).tolist())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_whole(tensor: Tensor) -> bool:
    full = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    return tensor.numel() == full and tensor.is_contiguous()


@dataclass
class Build:
    """A module without weights.

    Attributes:
        result: what the factory returned.
        mode: the fake mode of all its parameters.
    """

    result: Any
    mode: FakeTensorMode
    _recorder: _Recorder = field(repr=False)

    def init_of(self, name: str, parameter: Tensor) -> tuple[InitCall, ...]:
        """The calls that fill a parameter; none if its memory was never filled.

        Raises:
            InvalidInput: it was filled by something that cannot be repeated from a seed.
        """
        story = self._recorder.of(parameter)
        if story.lost is None:
            return story.calls
        raise InvalidInput(
            f"parameter {name} {list(parameter.shape)}: its initial values come from '{story.lost}', which cannot be"
            " drawn again from a seed; fill it in the module's constructor with torch.nn.init's normal_, uniform_,"
            " constant_, xavier_*, kaiming_* or trunc_normal_ (pretrained weights are not captured)"
        )


def build_without_weights(factory: Callable[[], Any]) -> Build:
    """Calls the factory with every parameter a fake tensor; its module is never filled with numbers."""
    mode, recorder = FakeTensorMode(allow_non_fake_inputs=True), _Recorder()
    with _fake_parameters(mode, recorder), _whole_trunc_normal(recorder), recorder:
        result = factory()
    return Build(result, mode, recorder)


@contextmanager
def _fake_parameters(mode: FakeTensorMode, recorder: _Recorder) -> Iterator[None]:
    original = nn.Module.register_parameter
    fakes = WeakIdKeyDictionary()

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not isinstance(param, FakeTensor):  # a fake one is shared (tied), and stays
            if param not in fakes:
                fakes[param] = _faked(param, mode, recorder)
            param = fakes[param]
        original(module, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def _faked(param: nn.Parameter, mode: FakeTensorMode, recorder: _Recorder) -> nn.Parameter:
    """The parameter without storage; float32 if it is of floating point."""
    if recorder.of(param).lost is not None and (known := _values_of(param)) is not None:
        recorder.tell(param, _Story((InitCall(call=known[0], args=known[1]),)))
    with mode:
        fake = torch.empty(param.shape, dtype=torch.float32 if param.dtype.is_floating_point else param.dtype)
    recorder.join(fake, param)
    return nn.Parameter(fake, requires_grad=param.requires_grad)
