"""Modules of Hugging Face's transformers, from a configuration alone: no weights, no remote code."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hetplanner.capture.export import Factory, Wrapper
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line
from hetplanner.weights.names import base_name
from hetplanner.workload.fine_tuning import Adapters
from hetplanner.workload.workload import HuggingFace, Workload

DEFAULT_SEQ_LEN = 1024
DEFAULT_IMAGE_SIZE = 224


class LanguageModel(Wrapper):
    """Token ids to logits; no cache."""

    def forward(self, inputs: Tensor) -> Any:
        """The model's output, with logits [batch, tokens, vocabulary]."""
        return self.inner(input_ids=inputs, use_cache=False)


class ImageClassifier(Wrapper):
    """Pixels to logits."""

    def forward(self, inputs: Tensor) -> Any:
        """The model's output, with logits [batch, classes]."""
        return self.inner(pixel_values=inputs)


def config_factory(
    fields: Mapping[str, Any],
    place: str,
    *,
    micro_batch: int = 1,
    seq_len: int | None = None,
) -> Factory:
    """A factory of the model that a `config.json` describes: a causal language model or an image classifier.

    Args:
        fields: content of the file.
        place: its name, for messages.
        micro_batch: samples of the example.
        seq_len: tokens of the example; the model's longest but at most 1024 if not given.

    Raises:
        InvalidInput: no transformers, an unknown `model_type`, or one of another task.
    """
    try:
        import transformers
    except ImportError:
        raise InvalidInput(
            f"{place}: capturing a Hugging Face config needs transformers; install it: pip install 'hetplanner[hf]'"
        ) from None
    known = {key: value for key, value in fields.items() if key not in ("auto_map", "quantization_config")}
    model_type = known.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise InvalidInput(
            f"{place}: model_type: must be one that this transformers ({transformers.__version__}) knows, got"
            f" {model_type!r:.60}; correct it or upgrade transformers"
        )
    try:
        config = transformers.AutoConfig.for_model(model_type, **known)
    except Exception as error:
        raise InvalidInput(
            one_line(f"{place}: not a config of {model_type}: {str(error).splitlines()[0]:.200}")
        ) from None
    if type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return _language_model(transformers, config, place, micro_batch, seq_len)
    if type(config) in transformers.AutoModelForImageClassification._model_mapping:
        return _image_classifier(transformers, config, place, micro_batch, seq_len)
    raise InvalidInput(
        f"{place}: model_type {model_type!r} is no causal language model or image classifier; write a factory and give"
        " it as --model-code package.module:factory"
    )


def _language_model(transformers: Any, config: Any, place: str, micro_batch: int, seq_len: int | None) -> Factory:
    longest = getattr(config, "max_position_embeddings", None) or DEFAULT_SEQ_LEN
    if seq_len is not None and seq_len > longest:
        raise InvalidInput(f"{place}: seq_len must be at most the model's longest, {longest}, got {seq_len}")
    length = seq_len or min(longest, DEFAULT_SEQ_LEN)

    def factory() -> tuple[nn.Module, Tensor]:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if type(config) in transformers.AutoModelForMaskedLM._model_mapping and not _is_causal(model.config):
            raise InvalidInput(
                f"{place}: {config.model_type} is bidirectional: each token sees the next one, which it would learn to"
                ' predict; add "is_decoder": true to the config for a causal model'
            )
        if model._can_set_experts_implementation():
            model.set_experts_implementation("batched_mm")  # others need one number format, or sizes known to the data
        return LanguageModel(model), torch.zeros(micro_batch, length, dtype=torch.int64)

    return factory


def _is_causal(config: Any) -> bool:
    """Whether a model of encoders and decoders is built as a decoder."""
    return bool(getattr(config, "is_decoder", False) or getattr(config, "causal", False))


def _image_classifier(transformers: Any, config: Any, place: str, micro_batch: int, seq_len: int | None) -> Factory:
    found = transformers.AutoModelForImageClassification._model_mapping[type(config)]
    if isinstance(found, tuple):  # several classes: the first is the plain one
        config.architectures = [found[0].__name__]
    if seq_len not in (None, 1):
        raise InvalidInput(f"{place}: seq_len must be 1 for an image classifier (one target an image), got {seq_len}")
    size = getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", 3)

    def factory() -> tuple[nn.Module, Tensor]:
        model = transformers.AutoModelForImageClassification.from_config(config, dtype=torch.float32)
        return ImageClassifier(model), torch.zeros(micro_batch, channels, height, width)

    return factory


def known_to_transformers(
    factory: Factory, fields: Mapping[str, Any], captured: Workload, adapters: Adapters | None = None
) -> HuggingFace:
    """What the captured model's files are called and hold in transformers.

    Args:
        factory: from `config_factory`, without adapters; called once more, without memory for weights.
        fields: the config.
        captured: what was captured.
        adapters: that were put beside the model's layers before.
    """
    with torch.device("meta"):
        model: Any = factory()[0].inner
    state = dict(model.state_dict())
    stored = {id(tensor): name for name, tensor in _as_saved(model, state).items()}
    names = {name: stored.get(id(tensor), name) for name, tensor in state.items()}
    assert captured.program is not None
    ours = {base_name(name): name for name in (*captured.program.parameters, *captured.program.buffers)}
    used = ours.keys()
    ties = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in used}
    tied = {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in ties}
    return HuggingFace(
        config=dict(fields),
        stored_names={ours[name]: saved for name, saved in names.items() if name in used and saved != ours[name]},
        unused=tuple(saved for name, saved in names.items() if name not in used | tied),
        adapters=adapters,
        fan_in_fan_out=adapters is not None and any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )


def _as_saved(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state under the names of files: transformers 5 has names of its own for some architectures."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    renamed: dict[str, Tensor] = revert_weight_conversion(model, dict(state))
    return renamed
