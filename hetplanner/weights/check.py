"""Whether a model folder fits a workload: the one check that everything makes before any step, and what it finds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import reader
from hetplanner.weights.folder import CONFIG, ModelFolder, open_folder
from hetplanner.weights.header import StoredTensor, same_bytes, values_of
from hetplanner.weights.names import Part, parts_of
from hetplanner.weights.tokenizer import num_words
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.program import Program
from hetplanner.workload.workload import Workload

TYPES = {"float32": ("F32", "BF16", "F16"), "int64": ("I64",), "int32": ("I32",)}
"""By our element type, those of files that it holds exactly."""
UNREAD = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq|position_ids|attention\.(masked_)?bias)$")
"""Constants that older files hold and transformers ignores: masks, positions and rotary rates."""
SHAPE_FIELDS = (
    "family", "vocab", "max_seq_len", "hidden", "layers", "heads", "num_kv_heads", "ffn", "tie_embeddings", "norm_eps",
    "rope_theta", "qkv_bias",
)  # fmt: skip
"""Of a transformer by formula: what makes it another function of its weights."""


@dataclass(frozen=True)
class InitialWeights:
    """A folder that fits a workload.

    Attributes:
        folder: the files.
        parts: by our name of a tensor, where its rows lie, and what holds them.
        digest: of all headers: ranks on several hosts must have the same.
    """

    folder: ModelFolder
    parts: Mapping[str, tuple[tuple[Part, StoredTensor], ...]] = field(repr=False)
    digest: str


@reader("model folder", at="init_from")
def check_weights(init_from: str, workload: Workload) -> InitialWeights:
    """Everything that can be told without reading tensors: files, names, shapes, element types, words.

    Args:
        init_from: path of a Hugging Face model folder; `~` is the user's home.
        workload: of the plan that starts from it.

    Raises:
        InvalidInput: the folder is not whole, or is another model's; one line names the first that is wrong.
    """
    folder = open_folder(Path(init_from).expanduser())
    place = one_line(str(folder.path))
    _check_config(folder, workload, place)
    found, used = found_parts(folder.tensors, parts_of(workload), place)
    unused = workload.huggingface.unused if workload.huggingface is not None else ()
    constants = _check_constants(folder.tensors, workload.program, place)
    _check_extra(folder.tensors, used.union(unused, constants), used, place)
    _check_words(folder, workload, place)
    text = "\n".join(f"{t.name} {t.dtype} {t.shape} {t.file.name} {t.start}" for _, t in sorted(folder.tensors.items()))
    return InitialWeights(folder, found, sha256(text.encode()).hexdigest())


def _check_config(folder: ModelFolder, workload: Workload, place: str) -> None:
    """Shapes alone do not tell heads, norms or rotary positions."""
    if "quantization_config" in folder.config:
        raise InvalidInput(f"{place}: {CONFIG}: holds quantized weights; give the folder of the unquantized model")
    ours = workload.transformer
    if ours is None:
        _check_captured_config(folder.config, workload, place)
        return
    if ours.boundary_layers or ours.shared_layers > 1:
        what = "compression-aware layers" if ours.boundary_layers else "shared layers"
        raise InvalidInput(f"{place}: holds a plain transformer, and the plan's model has {what}; plan it without them")
    theirs = workload_from_config(folder.path / CONFIG).transformer
    assert theirs is not None
    for name in SHAPE_FIELDS:
        one, other = getattr(theirs, name), getattr(ours, name)
        if one != other and not (name == "rope_theta" and ours.family == "gpt2"):
            raise InvalidInput(
                f"{place}: {CONFIG}: is another model than the plan's: {name} is {one}, the plan has {other}; plan"
                " with --model and this folder"
            )


def _check_captured_config(config: Mapping[str, Any], workload: Workload, place: str) -> None:
    if workload.huggingface is None:
        return
    ours = workload.huggingface.config
    ignored = ("dtype", "torch_dtype", "transformers_version", "architectures", "_name_or_path", "use_cache")
    for name in sorted(ours.keys() & config.keys()):
        if name not in ignored and ours[name] != config[name]:
            raise InvalidInput(
                one_line(
                    f"{place}: {CONFIG}: is another model than the plan's: {name} is {config[name]!r:.60}, the plan has"
                    f" {ours[name]!r:.60}; plan with --model and this folder"
                )
            )


def found_parts(
    tensors: Mapping[str, StoredTensor], wanted: Mapping[str, tuple[Part, ...]], place: str
) -> tuple[dict[str, tuple[tuple[Part, StoredTensor], ...]], set[str]]:
    """By our name, parts with what holds them; and the names that are used."""
    names = _names([part for parts in wanted.values() for part in parts], tensors)
    if missing := sorted(name for name, held in names.items() if held not in tensors):
        count = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InvalidInput(
            one_line(f"{place}: tensor {missing[0]!r:.120} of the plan's model is missing{count}; give its own folder")
        )
    found = {}
    for ours, parts in wanted.items():
        held = tuple((part, tensors[names[part.name]]) for part in parts)
        for part, tensor in held:
            _check_tensor(part, tensor, place)
        found[ours] = held
    return found, set(names.values())


def _names(wanted: list[Part], tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """What the folder calls each tensor: a base model is saved without the first part of its names."""
    roots = {name.partition(".")[0] for name in tensors}
    found = {}
    for part in wanted:
        root, _, rest = part.name.partition(".")
        choices = [part.name, part.other, *([rest] if root not in roots else [])]
        found[part.name] = next((name for name in choices if name in tensors), part.name)
    return found


def _check_tensor(part: Part, tensor: StoredTensor, place: str) -> None:
    name = one_line(f"{place}: {tensor.file.name}: tensor {tensor.name!r:.120}")
    if tensor.shape != part.shape:
        raise InvalidInput(
            f"{name} has shape {list(tensor.shape)}, the plan's model {list(part.shape)}; give its own folder"
        )
    allowed = TYPES.get(part.dtype, ())
    if tensor.dtype not in allowed:
        raise InvalidInput(
            f"{name} is of type {tensor.dtype}, and must be {' or '.join(allowed)}; save the model as float32"
        )


def _check_constants(tensors: Mapping[str, StoredTensor], program: Program | None, place: str) -> set[str]:
    """The captured model's constants that files hold too (BART's `final_logits_bias`): nothing trains or loads them."""
    buffers = {} if program is None else {name: b for name, b in program.buffers.items() if not b.running}
    known = buffers.keys() & tensors.keys()
    for name in sorted(known):
        tensor, buffer = tensors[name], buffers[name]
        _check_tensor(Part(name, buffer.shape, dtype=buffer.dtype), tensor, place)
        ours = np.repeat(np.asarray(buffer.values, dtype=buffer.dtype), buffer.run_lengths or 1)
        if not np.array_equal(values_of(tensor).ravel(), ours):
            raise InvalidInput(
                one_line(
                    f"{place}: {tensor.file.name}: tensor {name!r:.120} is a constant, which has other values in the"
                    " plan's model; hetplanner trains such a model with the values that its config gives alone"
                )
            )
    return set(known)


def _check_extra(tensors: Mapping[str, StoredTensor], known: set[str], used: set[str], place: str) -> None:
    """Tensors that the model lacks are refused, unless they repeat another (tied weights) or are known constants."""
    loaded = [tensors[name] for name in used]
    for name in sorted(tensors.keys() - known):
        tensor = tensors[name]
        if UNREAD.search(name) or any(same_bytes(tensor, one) for one in loaded if one.shape == tensor.shape):
            continue
        raise InvalidInput(
            one_line(
                f"{place}: {tensor.file.name}: tensor {name!r:.120} {list(tensor.shape)} is not in the plan's model;"
                " give the folder of that model"
            )
        )


def _check_words(folder: ModelFolder, workload: Workload, place: str) -> None:
    words = num_words(folder.path)
    rows = folder.config.get("vocab_size") if workload.transformer is None else workload.transformer.vocab
    if words is not None and isinstance(rows, int) and words > rows and workload.reads_tokens:
        raise InvalidInput(
            f"{place}: its tokenizer has {words} words, the model only {rows}; give the tokenizer of this model"
        )
