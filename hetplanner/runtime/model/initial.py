"""Initial weights: a pure function of (seed, name), so that they are the same whatever the cut."""

import torch
from torch import Tensor, nn

from hetplanner.errors import InvalidInput
from hetplanner.runtime.rng import stable_seed
from hetplanner.workload.program import INIT_CALLS, RANDOM_INIT_CALLS, InitCall, Parameter
from hetplanner.workload.transformer import TransformerConfig

WEIGHT_STD = 0.02
"""Of matrices and embeddings. Source: Radford et al. 2019 (GPT-2's released code)."""


@torch.no_grad()
def fill_transformer_weight(weight: Tensor, name: str, config: TransformerConfig, seed: int) -> None:
    """Fills one weight of a transformer in place.

    Args:
        weight: what to fill.
        name: of the weight in the model.
        config: gives the number of layers; the two projections that write to the residual stream are scaled
            by 1/sqrt(2 · layers) (Radford et al. 2019, section 2.3). Compression-aware layers are the stream itself,
            nothing goes past them: they keep the variance, std = 1/sqrt(inputs) (LeCun et al. 1998, Efficient
            BackProp); with `WEIGHT_STD` models learned much more slowly (ours, measured).
        seed: the run's seed.
    """
    if name.endswith(("bias", "lora_B")):
        weight.zero_()
    elif name.endswith("lora_A"):  # kaiming_uniform_ with a = sqrt(5), as PEFT begins
        bound = weight.shape[1] ** -0.5
        weight.uniform_(-bound, bound, generator=torch.Generator().manual_seed(stable_seed(seed, name)))
    elif weight.ndim == 1:
        weight.fill_(1.0)
    else:
        residual = name.endswith((".out.weight", ".down.weight"))
        std = WEIGHT_STD / (2 * config.layers) ** 0.5 if residual else WEIGHT_STD
        if name.endswith((".squeeze.weight", ".spread.weight")):
            std = weight.shape[1] ** -0.5
        weight.normal_(0.0, std, generator=torch.Generator().manual_seed(stable_seed(seed, name)))


@torch.no_grad()
def fill_program_weight(weight: Tensor, name: str, parameter: Parameter, seed: int) -> None:
    """Fills one weight of a captured model in place by the calls that filled it when the model was built.

    A weight without recorded calls (its memory was never filled) starts as a transformer's would: biases at 0,
    other vectors at 1, the rest normal with `WEIGHT_STD`.

    Args:
        weight: what to fill, contiguous.
        name: of the weight in the model.
        parameter: its recorded calls.
        seed: the run's seed.

    Raises:
        InvalidInput: a call fills something outside of the weight.
    """
    generator = torch.Generator().manual_seed(stable_seed(seed, name))
    if not parameter.init:
        if weight.ndim >= 2:
            weight.normal_(0.0, WEIGHT_STD, generator=generator)
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
    for i, call in enumerate(parameter.init):
        place = f"parameter {name}: init[{i}] ({call.call})"
        part = weight if call.view is None else _part_of(weight, call.view, f"{place}.view")
        try:
            _perform(call, part, generator)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"{place}: {(str(error).splitlines() or ['?'])[0]:.200}") from None


def _perform(call: InitCall, part: Tensor, generator: torch.Generator) -> None:
    if call.call == "values_":
        part.copy_(torch.tensor(call.args, dtype=torch.float32).view(part.shape))
    elif call.call == "trunc_normal_":
        mean, std, least, greatest = call.args
        nn.init.trunc_normal_(part, mean, std, least, greatest, generator=generator)
    elif call.call in RANDOM_INIT_CALLS:
        getattr(part, call.call)(*call.args, generator=generator)
    elif call.call in INIT_CALLS:
        getattr(part, call.call)(*call.args)


def _part_of(weight: Tensor, view: tuple[int, tuple[int, ...], tuple[int, ...]], place: str) -> Tensor:
    """A view of a weight. Weights lie side by side in one buffer, so torch's own check is not enough."""
    offset, sizes, strides = view
    reach = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if offset < 0 or min((*sizes, *strides, 1)) < 0 or (0 not in sizes and reach >= weight.numel()):
        raise InvalidInput(f"{place}: must lie inside the parameter's {weight.numel()} elements, reaches {reach}")
    return weight.as_strided(sizes, strides, weight.storage_offset() + offset)
