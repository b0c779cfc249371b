"""Named workloads: the GPT-2 and Llama families, GPT-3 XL as DT-FM trained it, residual networks, tiny ones for a CPU.

Transformers follow by formula; the residual networks are shipped captured (see :mod:`hetplanner.capture.presets`).
"""

import difflib
import gzip
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from hetplanner.dtypes import DTYPE_BYTES, DType
from hetplanner.errors import InvalidInput
from hetplanner.schema import checked
from hetplanner.workload.capturing.samples import for_samples
from hetplanner.workload.files import workload_from_json
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.optimizers import OptimizerName
from hetplanner.workload.transformer import BoundaryLayers, TransformerConfig
from hetplanner.workload.workload import Workload


@dataclass(frozen=True)
class _Preset:
    config: TransformerConfig
    seq_len: int
    global_batch: int
    micro_batch: int
    dtype: DType


def _gpt2(name: str, hidden: int, layers: int, heads: int, **changes: Any) -> TransformerConfig:
    sizes = {"vocab": 50257, "max_seq_len": 1024, "ffn": 4 * hidden} | changes
    return TransformerConfig(family="gpt2", name=name, hidden=hidden, layers=layers, heads=heads, **sizes)


def _llama(name: str, hidden: int, layers: int, heads: int, ffn: int, **changes: Any) -> TransformerConfig:
    sizes = {
        "vocab": 128256,
        "max_seq_len": 8192,
        "kv_heads": 8,
        "tie_embeddings": False,
        "rope_theta": 500_000.0,
    } | changes
    return TransformerConfig(family="llama", name=name, hidden=hidden, layers=layers, heads=heads, ffn=ffn, **sizes)


_BYTES = {"vocab": 256}
"""The byte-level data set needs no other vocabulary."""

# Radford et al. 2019 for GPT-2; Brown et al. 2020, table 2.1 for GPT-3 XL, with the 16 heads, the batch of
# 1024 sequences and the micro-batches of one that DT-FM used; Meta's Llama 3 and 3.2 configurations, rotary
# scaling left out.
_PRESETS: dict[str, _Preset] = {
    "tiny-gpt": _Preset(_gpt2("tiny-gpt", 128, 6, 4, max_seq_len=64, **_BYTES), 64, 32, 2, "float32"),
    "tiny-llama": _Preset(
        _llama("tiny-llama", 128, 6, 4, 352, kv_heads=2, max_seq_len=64, rope_theta=10_000.0, **_BYTES),
        64,
        32,
        2,
        "float32",
    ),
    "small-gpt": _Preset(_gpt2("small-gpt", 256, 8, 8, max_seq_len=128, **_BYTES), 128, 32, 2, "float32"),
    "gpt2": _Preset(_gpt2("gpt2", 768, 12, 12), 1024, 512, 4, "float16"),
    "gpt2-medium": _Preset(_gpt2("gpt2-medium", 1024, 24, 16), 1024, 512, 4, "float16"),
    "gpt2-large": _Preset(_gpt2("gpt2-large", 1280, 36, 20), 1024, 512, 2, "float16"),
    "gpt2-xl": _Preset(_gpt2("gpt2-xl", 1600, 48, 25), 1024, 512, 1, "float16"),
    "gpt3-xl": _Preset(_gpt2("gpt3-xl", 2048, 24, 16, max_seq_len=2048), 2048, 1024, 1, "float16"),
    "llama-1b": _Preset(_llama("llama-1b", 2048, 16, 32, 8192, tie_embeddings=True), 4096, 512, 1, "bfloat16"),
    "llama-8b": _Preset(_llama("llama-8b", 4096, 32, 32, 14336), 4096, 512, 1, "bfloat16"),
    "llama-70b": _Preset(_llama("llama-70b", 8192, 80, 64, 28672), 4096, 512, 1, "bfloat16"),
}


# The batch of He et al. 2016 for ImageNet.
CAPTURED_PRESETS: dict[str, int] = {"tiny-resnet": 64, "resnet101-narrow": 64, "resnet101": 256}
"""Global batch by name."""


def preset_names() -> tuple[str, ...]:
    """Names that `preset` knows, smallest families first."""
    return (*_PRESETS, *CAPTURED_PRESETS)


def captured_preset_path(name: str) -> Traversable:
    """The packaged workload file of a captured preset."""
    return files("hetplanner.workload") / "captured" / f"{name}.json.gz"


@lru_cache(maxsize=len(CAPTURED_PRESETS))
def _captured(name: str) -> Workload:
    text = gzip.decompress(captured_preset_path(name).read_bytes())
    return workload_from_json(text, name)


def preset(
    name: str,
    *,
    layers: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    seq_len: int | None = None,
    dtype: DType | None = None,
    recompute: bool | None = None,
    boundary_layers: BoundaryLayers | str | None = None,
    shared_layers: int | None = None,
    optimizer: OptimizerName | None = None,
    adapters: Adapters | str | None = None,
    freeze_layers: int | None = None,
) -> Workload:
    """A named workload; what is not given is the preset's own.

    Args:
        name: one of `preset_names()`.
        layers: number of transformer layers.
        global_batch: sequences in one optimiser step.
        micro_batch: sequences in one micro-batch; divides `global_batch`.
        seq_len: tokens in a sequence, at most the model's longest.
        dtype: number format of weights and activations.
        recompute: keep only stage inputs and compute activations again in backward.
        boundary_layers: compression-aware layers, also as text: `bottleneck:4` behind every layer, `maxout:2:6`
            behind every sixth, `none` nowhere.
        shared_layers: so many consecutive layers share one set of weights.
        optimizer: what trains the model, one of `OPTIMIZERS`.
        adapters: train low-rank adapters alone, also as text: `8` of that rank, `8:16` with that alpha,
            `8:16:q_proj,v_proj` beside these linear layers; `none` for none.
        freeze_layers: freeze the embedding and so many layers from the front; 0 for none.

    Raises:
        InvalidInput: an unknown name (the nearest are listed) or a broken law.
    """
    overrides: dict[str, Any] = {
        "global_batch": global_batch,
        "micro_batch": micro_batch,
        "seq_len": seq_len,
        "dtype": dtype,
        "recompute": recompute,
        "boundary_layers": boundary_layers,
        "shared_layers": shared_layers,
        "optimizer": optimizer,
        "adapters": adapters,
        "freeze_layers": freeze_layers,
    }
    if name in CAPTURED_PRESETS:
        return changed_workload(_captured(name), name, layers=layers, **overrides)
    return with_overrides(_fields_of(name), name, layers=layers, **overrides)


def _fields_of(name: str) -> dict[str, Any]:
    """Fields of a transformer's workload, by its name. Raises InvalidInput."""
    found = _PRESETS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, preset_names(), n=3, cutoff=0.4)
        hint = f"nearest are {', '.join(near)}" if near else f"known are {', '.join(preset_names())}"
        raise InvalidInput(
            f"model: unknown preset {name!r:.60}; {hint} (see: hetplanner workload presets);"
            " or give the path of a config.json or workload file"
        )
    return {
        "name": name,
        "transformer": found.config,
        "seq_len": found.seq_len,
        "global_batch": found.global_batch,
        "micro_batch": found.micro_batch,
        "dtype": found.dtype,
    }


def changed_workload(workload: Workload, place: str, *, layers: int | None = None, **overrides: Any) -> Workload:
    """A workload with overrides as for `preset`; None = as is. Raises InvalidInput."""
    fields = {name: getattr(workload, name) for name in Workload.model_fields}
    return with_overrides(fields, place, layers=layers, **overrides)


def with_overrides(fields: dict[str, Any], place: str, *, layers: int | None, **overrides: Any) -> Workload:
    """The workload of `fields` with every override that is not None; those of its shape go into its transformer.

    A captured model keeps its layers and sequence length; another dtype scales its bytes.

    Raises:
        InvalidInput: naming the field inside `place`.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    given |= {} if layers is None else {"layers": layers}
    if fields.get("captured") is not None:
        return _captured_with(fields, place, given)
    shape = {key: given.pop(key) for key in _SHAPE if key in given}
    if isinstance(shape.get("boundary_layers"), str):
        text = shape["boundary_layers"]
        shape["boundary_layers"] = None if text == NO_BOUNDARY_LAYERS else BoundaryLayers.parse(text)
    if shape:
        config = fields["transformer"]
        values = {key: getattr(config, key) for key in TransformerConfig.model_fields} | shape
        given["transformer"] = checked(TransformerConfig, values, place)
    tuning = {key: given.pop(key) for key in _TUNING if key in given}
    if tuning:
        given["fine_tuning"] = _fine_tuning(fields["transformer"].family, place, **tuning)
    return checked(Workload, fields | given, place)


def _fine_tuning(
    family: str, place: str, adapters: Adapters | str | None = None, freeze_layers: int = 0
) -> FineTuning | None:
    """What of a transformer is trained; None for all. Raises InvalidInput."""
    if isinstance(adapters, str):
        adapters = None if adapters == NO_ADAPTERS else Adapters.parse(adapters, family)
    if adapters is None and not freeze_layers:
        return None
    return checked(FineTuning, {"adapters": adapters, "frozen_layers": freeze_layers}, f"{place}: fine_tuning")


NO_BOUNDARY_LAYERS = "none"
_SHAPE = ("layers", "boundary_layers", "shared_layers")
"""Overrides that change a transformer's shape."""
NO_ADAPTERS = "none"
_TUNING = ("adapters", "freeze_layers")
"""Overrides that say what of a transformer is trained."""


def _captured_with(fields: dict[str, Any], place: str, given: dict[str, Any]) -> Workload:
    for name in (*_SHAPE, "seq_len"):
        if name in given and not (name == "seq_len" and given[name] == fields["seq_len"]):
            raise InvalidInput(
                f"{place}: {name}: cannot be changed, the model was captured as it is; capture another one:"
                " hetplanner workload capture"
            )
    for name in _TUNING:
        if given.pop(name, None) not in (None, NO_ADAPTERS, 0):
            raise InvalidInput(
                f"{place}: {name}: cannot be given, a captured model says itself what of it is trained; capture it with"
                " adapters or frozen weights: hetplanner workload capture"
            )
    program, samples = fields["program"], given.get("micro_batch")
    if program is not None and program.per_sample is not None and isinstance(samples, int) and samples > 0:
        given["program"] = for_samples(program, samples)
    if given.get("dtype") in DTYPE_BYTES:
        given["captured"] = fields["captured"].in_dtype(DTYPE_BYTES[fields["dtype"]], DTYPE_BYTES[given["dtype"]])
    return checked(Workload, fields | given, place)
