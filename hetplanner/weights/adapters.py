"""Low-rank adapters as PEFT keeps them in a folder: names of tensors, adapter_config.json, and whether one fits.

A folder holds adapter_config.json and adapter_model.safetensors. Only these are read; nothing is unpickled.
Source: https://huggingface.co/docs/peft/developer_guides/checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import reader
from hetplanner.weights.check import InitialWeights, check_weights, found_parts
from hetplanner.weights.folder import ModelFolder, read_config
from hetplanner.weights.header import read_header
from hetplanner.weights.names import Part, is_adapter
from hetplanner.workload.fine_tuning import Adapters, LinearLayer, adapted_layers
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 2**20
PREFIX = "base_model.model."
LAYERS = {
    "gpt2": ("transformer.h", {"attention": "attn", "mlp": "mlp"}),
    "llama": ("model.layers", {"attention": "self_attn", "mlp": "mlp"}),
}
"""By family, what transformers calls the list of layers and the halves of one."""
OTHERWISE: dict[str, Any] = {
    "use_dora": False, "use_rslora": False, "lora_bias": False, "modules_to_save": None, "rank_pattern": {},
    "alpha_pattern": {}, "layers_to_transform": None, "layer_replication": None, "bias": "none",
}  # fmt: skip
"""Fields that make another function of the weights, and the values with which they do not."""


@dataclass(frozen=True, slots=True)
class Merge:
    """An adapter whose product B A, times the scale, is added to rows of a weight of ours.

    Attributes:
        lora_a, lora_b: our names of its weights, (rank, in) and (out, rank).
        first_row: of the weight.
        transposed: whether the weight has columns for rows.
    """

    lora_a: str
    lora_b: str
    first_row: int = 0
    transposed: bool = False


def adapters_of(workload: Workload) -> Adapters | None:
    """The adapters that a workload trains, if it does."""
    if workload.fine_tuning is not None:
        return workload.fine_tuning.adapters
    return workload.huggingface.adapters if workload.huggingface is not None else None


def adapter_parts(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """By our name of an adapter's weight, the tensor in PEFT's file; empty without adapters."""
    adapters, program = adapters_of(workload), workload.program
    if adapters is None:
        return {}
    if program is not None:
        names = [name for name in program.parameters if is_adapter(name)]
        return {
            name: (Part(PREFIX + name.replace(".default.", "."), program.parameters[name].shape),) for name in names
        }
    assert workload.transformer is not None
    found: dict[str, tuple[Part, ...]] = {}
    for ours, theirs, layer in _layers(workload.transformer, adapters):
        for leaf, shape in (("lora_A", (adapters.rank, layer.wide_in)), ("lora_B", (layer.wide_out, adapters.rank))):
            found[f"{ours}.{leaf}"] = (Part(f"{PREFIX}{theirs}.{leaf}.weight", shape),)
    return found


def merges_of(workload: Workload) -> dict[str, tuple[Merge, ...]]:
    """By our name of a weight, the adapters to be added to it."""
    adapters, program = adapters_of(workload), workload.program
    found: dict[str, tuple[Merge, ...]] = {}
    if adapters is None:
        return found
    if program is not None:
        transposed = workload.huggingface is not None and workload.huggingface.fan_in_fan_out
        for name in program.parameters:
            if name.endswith(end := ".lora_A.default.weight"):
                linear = name.removesuffix(end)
                merge = Merge(name, f"{linear}.lora_B.default.weight", transposed=transposed)
                found[f"{linear}.base_layer.weight"] = (merge,)
        return found
    assert workload.transformer is not None
    for ours, _, layer in _layers(workload.transformer, adapters):
        weight = f"{ours.rpartition('.')[0]}.{layer.module}.weight"
        merge = Merge(f"{ours}.lora_A", f"{ours}.lora_B", layer.first_row)
        found[weight] = (*found.get(weight, ()), merge)
    return found


def _layers(config: TransformerConfig, adapters: Adapters) -> Iterator[tuple[str, str, LinearLayer]]:
    """Our name, theirs, and the linear layer, of all that have an adapter."""
    root, halves = LAYERS[config.family]
    for i in range(config.layers):
        for layer in adapted_layers(config, adapters):
            ours, theirs = f"layer.{i}.{layer.half}", f"{root}.{i}.{halves[layer.half]}"
            yield f"{ours}.{layer.target}", f"{theirs}.{layer.target}", layer


def adapter_config(workload: Workload, base: str) -> dict[str, Any]:
    """The content of adapter_config.json.

    Args:
        workload: with adapters.
        base: what the base model is called.
    """
    adapters = adapters_of(workload)
    assert adapters is not None
    known = workload.huggingface
    is_gpt2 = workload.transformer is not None and workload.transformer.family == "gpt2"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if workload.reads_tokens else None,
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(adapters.targets),
        "fan_in_fan_out": is_gpt2 or (known is not None and known.fan_in_fan_out),
        "bias": "none",
        "inference_mode": True,
    }


def initial_weights(init_from: str, adapter: str | None, workload: Workload) -> tuple[InitialWeights, ...]:
    """What a run begins with: a model folder, and with `adapter` one of adapters. Raises InvalidInput."""
    adapters = (check_adapter(adapter, workload),) if adapter is not None else ()
    return (check_weights(init_from, workload), *adapters)


def common_digest(weights: Sequence[InitialWeights]) -> str:
    """SHA-256 of all headers."""
    return sha256("".join(each.digest for each in weights).encode()).hexdigest()


@reader("adapter folder", at="folder")
def check_adapter(folder: str, workload: Workload) -> InitialWeights:
    """Everything that can be told of a saved adapter without reading its tensors.

    Args:
        folder: as PEFT's `save_pretrained` writes it; `~` is the user's home.
        workload: of the plan that goes on with it.

    Raises:
        InvalidInput: the plan trains no adapters, or the folder is not whole, or is of another model or other
            adapters; one line names the first that is wrong.
    """
    path = Path(folder).expanduser()
    place = one_line(str(path))
    adapters = adapters_of(workload)
    if adapters is None:
        raise InvalidInput(f"{place}: holds an adapter, and the plan trains none; plan with --adapters RANK")
    config = read_config(path, ADAPTER_CONFIG, f"{ADAPTER_CONFIG} and {ADAPTER_FILE}")
    _check_config(config, adapters, f"{place}: {ADAPTER_CONFIG}")
    if not (path / ADAPTER_FILE).exists():
        raise InvalidInput(f"{place}: {ADAPTER_FILE} is missing; save the adapter with save_pretrained")
    tensors = read_header(path / ADAPTER_FILE)
    base = config.get("base_model_name_or_path")
    of = one_line(f"{place} (of the base model {base!r:.80})") if isinstance(base, str) and base else place
    found, used = found_parts(tensors, adapter_parts(workload), of)
    if extra := sorted(tensors.keys() - used):
        raise InvalidInput(one_line(f"{of}: tensor {extra[0]!r:.120} is not in the plan's model; give its own adapter"))
    text = "\n".join(f"{t.name} {t.dtype} {t.shape} {t.start}" for _, t in sorted(tensors.items()))
    return InitialWeights(ModelFolder(path, config, tensors), found, sha256(text.encode()).hexdigest())


def _check_config(config: Mapping[str, Any], adapters: Adapters, place: str) -> None:
    if config.get("peft_type") != "LORA":
        raise InvalidInput(one_line(f"{place}: peft_type must be LORA, is {config.get('peft_type')!r:.40}"))
    for name, ours in (("r", adapters.rank), ("lora_alpha", adapters.alpha)):
        if config.get(name) != ours:
            raise InvalidInput(
                one_line(
                    f"{place}: {name} is {config.get(name)!r:.40}, the plan's adapters have {ours:g}; plan with the"
                    " adapter's own: --adapters RANK:ALPHA"
                )
            )
    for name, usual in OTHERWISE.items():
        if config.get(name, usual) not in (usual, None):
            raise InvalidInput(one_line(f"{place}: {name}: must be {usual}, is {config[name]!r:.60}"))
    theirs = config.get("target_modules")
    if isinstance(theirs, list) and set(map(str, theirs)) != set(adapters.targets):
        raise InvalidInput(
            one_line(
                f"{place}: target_modules are {', '.join(sorted(map(str, theirs))):.120}, the plan's are"
                f" {', '.join(sorted(adapters.targets))}; plan with --adapters RANK:ALPHA:TARGET,..."
            )
        )
