"""Hugging Face `config.json` of GPT-2, Llama, Mistral and Qwen2, as a workload. The file is read, never run.

Fields that change nothing here (initialisers, token ids, cache settings, versions) are ignored; a field that
would make another model than ours is refused by name.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from hetplanner.dtypes import DTYPE_BYTES
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import checked, one_line, parse_json, read_text
from hetplanner.workload.presets import with_overrides
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

MAX_CONFIG_BYTES = 2**20

MISTRAL_DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131_072}
QWEN2_DEFAULTS = {"num_key_value_heads": 32, "max_position_embeddings": 32_768}
"""What transformers takes where a file says nothing."""
_MISSING = object()
MOST_INTEGER, MOST = 10**15, 1e300
"""Beyond these arithmetic with floats overflows; no model is near."""


class _Fields:
    """Reads typed fields of a config and names the one that is wrong."""

    def __init__(self, data: Mapping[str, Any], place: str) -> None:
        self.data, self.place = data, place

    def refuse(self, field: str, law: str) -> InvalidInput:
        return InvalidInput(one_line(f"{self.place}: {field}: {law}"))

    def integer(self, field: str, default: Any = _MISSING) -> Any:
        value = self.data.get(field, default)
        if value is _MISSING:
            raise self.refuse(field, "required field is missing; add it")
        if value is not default and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise self.refuse(field, f"must be a whole number above 0, got {value!r:.60}")
        if value is not default and value > MOST_INTEGER:
            raise self.refuse(field, f"must be at most {MOST_INTEGER:.0e}, got a number of {len(str(value))} digits")
        return value

    def number(self, field: str, default: float) -> float:
        value = self.data.get(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(field, f"must be a number, got {value!r:.60}")
        if not abs(value) <= MOST:
            raise self.refuse(field, f"must be between {-MOST:g} and {MOST:g}, got {value!r:.60}")
        return value

    def one_of(self, field: str, default: Any, allowed: tuple[Any, ...], remedy: str) -> Any:
        value = self.data.get(field, default)
        if not any(type(value) is type(a) and value == a for a in allowed):
            names = " or ".join(repr(a) for a in allowed)
            raise self.refuse(field, f"must be {names}, got {value!r:.60}; {remedy}")
        return value


_OTHER_MODEL = "our formulas do not know this variant; capture it: hetplanner workload capture CONFIG -o FILE"


def _gpt2_fields(fields: _Fields) -> dict[str, Any]:
    fields.one_of("activation_function", "gelu_new", ("gelu_new", "gelu_pytorch_tanh"), _OTHER_MODEL)
    fields.one_of("scale_attn_weights", True, (True,), _OTHER_MODEL)
    fields.one_of("scale_attn_by_inverse_layer_idx", False, (False,), _OTHER_MODEL)
    fields.one_of("add_cross_attention", False, (False,), _OTHER_MODEL)
    rates = {name: fields.number(name, 0.1) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    if len(set(rates.values())) > 1:
        given = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        raise fields.refuse("resid_pdrop", f"all dropout rates must be equal, got {given}; set one value")
    hidden = fields.integer("n_embd")
    longest = fields.integer("n_positions", None) or fields.integer("n_ctx")
    return {
        "vocab": fields.integer("vocab_size"),
        "max_seq_len": longest,
        "hidden": hidden,
        "layers": fields.integer("n_layer"),
        "heads": fields.integer("n_head"),
        "ffn": fields.integer("n_inner", None) or 4 * hidden,
        "tie_embeddings": fields.one_of("tie_word_embeddings", True, (True, False), "correct it"),
        "dropout": rates["resid_pdrop"],
        "norm_eps": fields.number("layer_norm_epsilon", 1e-5),
    }


def _llama_fields(fields: _Fields) -> dict[str, Any]:
    fields.one_of("hidden_act", "silu", ("silu",), _OTHER_MODEL)
    fields.one_of("attention_bias", False, (False,), _OTHER_MODEL)
    fields.one_of("mlp_bias", False, (False,), _OTHER_MODEL)
    fields.one_of("pretraining_tp", 1, (1,), "set it to 1; the weights are the same")
    if fields.number("attention_dropout", 0.0) != 0:
        raise fields.refuse("attention_dropout", "must be 0; dropout of attention alone is not supported")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", None)
    if head_dim is not None and head_dim * heads != hidden:
        raise fields.refuse(
            "head_dim", f"must be hidden_size / num_attention_heads = {hidden / heads:g}, got {head_dim}; remove it"
        )
    return {
        "vocab": fields.integer("vocab_size"),
        "max_seq_len": fields.integer("max_position_embeddings"),
        "hidden": hidden,
        "layers": fields.integer("num_hidden_layers"),
        "heads": heads,
        "kv_heads": fields.integer("num_key_value_heads", None),
        "ffn": fields.integer("intermediate_size"),
        "tie_embeddings": fields.one_of("tie_word_embeddings", False, (True, False), "correct it"),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "rope_theta": _rope_theta(fields),
    }


def _rope_theta(fields: _Fields) -> float:
    """Base of the rotary positions; transformers 5 moved it into `rope_parameters`."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.data.get(name)
        if scaling is None:
            continue
        kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else scaling
        if kind != "default":
            raise fields.refuse(
                name,
                f"scaled rotary positions are not supported, got {kind!r:.40}; set it to null: sizes and costs"
                " stay the same, but the model trained is without the scaling",
            )
        if name == "rope_parameters" and "rope_theta" in scaling:
            return _Fields(scaling, f"{fields.place}: {name}").number("rope_theta", 10_000.0)
    return fields.number("rope_theta", 10_000.0)


def _mistral_fields(fields: _Fields) -> dict[str, Any]:
    """Llama's, for as many tokens as each token sees."""
    fields = _Fields(MISTRAL_DEFAULTS | dict(fields.data), fields.place)
    found, window = _llama_fields(fields), fields.integer("sliding_window", None)
    return found | {"max_seq_len": min(found["max_seq_len"], window or found["max_seq_len"])}


def _qwen2_fields(fields: _Fields) -> dict[str, Any]:
    """Llama's, with biases of queries, keys and values."""
    fields = _Fields(QWEN2_DEFAULTS | dict(fields.data), fields.place)
    fields.one_of("use_sliding_window", False, (False,), _OTHER_MODEL)
    return _llama_fields(fields) | {"qkv_bias": True}


_FAMILIES: dict[str, tuple[Literal["gpt2", "llama"], Callable[[_Fields], dict[str, Any]]]] = {
    "gpt2": ("gpt2", _gpt2_fields),
    "llama": ("llama", _llama_fields),
    "mistral": ("llama", _mistral_fields),
    "qwen2": ("llama", _qwen2_fields),
}
"""By `model_type`: the family of our formulas, and its fields."""
_CAPTURED_OTHERWISE = ("mistral", "qwen2")
"""Model types whose variants are captured where the formulas do not know them; others are refused by name."""


def has_formulas(fields: Mapping[str, Any]) -> bool:
    """Whether a config's costs follow by formula, without its code; a config without a model type is ours to refuse."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        return True
    if model_type not in _CAPTURED_OTHERWISE:
        return model_type in _FAMILIES
    try:
        workload_from_config(fields)
    except InvalidInput:
        return False
    return True


@reader("Hugging Face config", at="source")
def workload_from_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    layers: int | None = None,
    **overrides: Any,
) -> Workload:
    """A workload of the model that a Hugging Face `config.json` describes.

    The file says nothing about training, so what is not given is: 64 sequences a step, in micro-batches of one,
    of the model's longest but at most 2048 tokens, in the file's dtype (float16 where it has none).

    Args:
        source: path of the file or of its folder, or its content.
        layers: number of transformer layers.
        **overrides: as for `preset`.

    Raises:
        InvalidInput: not a config, another `model_type`, a missing field, or a variant that is not ours.
    """
    place, data = _read(source)
    fields = _Fields(data, place)
    model_type = fields.one_of(
        "model_type",
        None,
        tuple(_FAMILIES),
        "only these have formulas; capture it: hetplanner workload capture CONFIG -o FILE",
    )
    family, fields_of = _FAMILIES[model_type]
    values = {"family": family, "name": _name(data, source, model_type)} | fields_of(fields)
    config = checked(TransformerConfig, values, place)
    found = data.get("dtype", data.get("torch_dtype"))
    return with_overrides(
        {
            "name": config.name,
            "transformer": config,
            "global_batch": 64,
            "micro_batch": 1,
            "seq_len": min(config.max_seq_len, 2048),
            "dtype": found if isinstance(found, str) and found in DTYPE_BYTES else "float16",
        },
        place,
        layers=layers,
        **overrides,
    )


def _read(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(source, Mapping):
        return "config", source
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    data = parse_json(read_text(path, MAX_CONFIG_BYTES), path.name)
    if not isinstance(data, dict):
        raise InvalidInput(one_line(f"{path.name}: must be a JSON object, got {type(data).__name__}"))
    return one_line(path.name), data


def _name(data: Mapping[str, Any], source: object, model_type: str) -> str:
    """What the model is called: by its file, else its folder, else its family."""
    given = data.get("_name_or_path")
    if isinstance(given, str) and given.strip("/. "):
        return _tidy(given)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        stem = path.name if path.is_dir() else path.parent.name if path.stem == "config" else path.stem
        return _tidy(stem) or model_type
    return model_type


def _tidy(name: str) -> str:
    return "".join(c for c in name.rstrip("/").rsplit("/", 1)[-1] if c.isprintable()).strip()[:100]
