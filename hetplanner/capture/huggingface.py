"""Modules of Hugging Face's transformers, from a configuration alone: no weights, no remote code."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hetplanner.capture.export import Factory, Wrapper
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line
from hetplanner.weights.names import EXPERTS_NDIM, base_name
from hetplanner.workload.capturing.capture import mask_of_tokenizer
from hetplanner.workload.fine_tuning import Adapters
from hetplanner.workload.task import Continuation, HiddenTokens, Pairs, Task
from hetplanner.workload.workload import HuggingFace, Workload

DEFAULT_SEQ_LEN = 1024
DEFAULT_IMAGE_SIZE = 224
MOST_ROWS = 2**40
"""More than any weight has."""
UNFIT_TASKS = {
    "SequenceClassification": "a class of each text",
    "TokenClassification": "a class of each token",
    "QuestionAnswering": "where in a text an answer stands",
    "MultipleChoice": "which of several texts is right",
    "NextSentencePrediction": "whether two texts follow one another",
}
"""Ends of class names in transformers, and what those learn from."""


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


class EncoderDecoder(Wrapper):
    """Ids of the source, then those that the decoder reads, to logits; no cache."""

    def forward(self, inputs: Tensor) -> Any:
        """The model's output, with logits [batch, half of the ids, vocabulary]."""
        source, written = inputs.chunk(2, dim=1)
        return self.inner(input_ids=source, decoder_input_ids=written, use_cache=False)


class SequenceToSequence(Wrapper):
    """As `EncoderDecoder`, of sources that are filled up with padding: no token sees that."""

    def __init__(self, inner: Any, pad_token: int) -> None:
        super().__init__(inner)
        self.pad_token = pad_token

    def forward(self, inputs: Tensor) -> Any:
        """The model's output, with logits [batch, half of the ids, vocabulary]."""
        source, written = inputs.chunk(2, dim=1)
        seen = (source != self.pad_token).long()
        return self.inner(input_ids=source, attention_mask=seen, decoder_input_ids=written, use_cache=False)


class MaskedLanguageModel(Wrapper):
    """Token ids, some of them hidden, to logits."""

    def forward(self, inputs: Tensor) -> Any:
        """The model's output, with logits [batch, tokens, vocabulary]."""
        return self.inner(input_ids=inputs)


@dataclass(frozen=True)
class ConfigFactory:
    """A factory of the model of a config, and what that learns; see `export_model`."""

    make: Factory
    task: Task | None = None

    def __call__(self) -> Any:
        """The module and its example input."""
        return self.make()


def config_factory(
    fields: Mapping[str, Any],
    place: str,
    *,
    micro_batch: int = 1,
    seq_len: int | None = None,
    mask_token: int | None = None,
    tokenizer: Path | None = None,
    pairs: bool = False,
) -> ConfigFactory:
    """A factory of the model that a `config.json` describes.

    It is an image classifier, or a language model: causal, of an encoder and a decoder, or bidirectional with hidden
    tokens.

    Args:
        fields: content of the file.
        place: its name, for messages.
        micro_batch: samples of the example.
        seq_len: tokens of the example; of encoder and decoder each; the longest but at most 1024 if not given.
        mask_token: id of what hides a token, for a bidirectional model.
        pairs: whether an encoder-decoder model learns pairs of a source and a target, and does not go on with a text.
        tokenizer: a tokenizer.json that tells it where `mask_token` is not given.

    Raises:
        InvalidInput: no transformers, an unknown `model_type`, or one of another task.
    """
    try:
        import transformers
    except ImportError:
        raise InvalidInput(
            f"{place}: capturing a Hugging Face config needs transformers; install it: pip install 'hetplanner[hf]'"
        ) from None
    config = _config_of(transformers, fields, place)
    autos: dict[str, Any] = {
        "image classifier": transformers.AutoModelForImageClassification,
        "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
    }
    kind = _kind_of(config, {name for name, auto in autos.items() if type(config) in auto._model_mapping}, place)
    if mask_token is not None and kind != "masked":
        raise InvalidInput(
            f"--mask-token: belongs to a bidirectional model that learns hidden tokens, and {config.model_type} is"
            f" {'an' if kind[0] in 'ie' else 'a'} {kind} model; leave it out"
        )
    if pairs and kind != "encoder-decoder":
        raise InvalidInput(f"--pairs: belongs to a model of encoder and decoder, which {place} is not; leave it out")
    if kind == "image classifier":
        return ConfigFactory(_image_classifier(transformers, config, place, micro_batch, seq_len))
    task: Task | None = None
    if kind == "encoder-decoder":
        task = _pairs(config, place) if pairs else _continuation(config, place)
    elif kind == "masked":
        found = mask_of_tokenizer(tokenizer) if mask_token is None and tokenizer is not None else mask_token
        task = _hidden_tokens(config, place, found)
    return ConfigFactory(_language_model(autos[kind], kind, config, place, micro_batch, seq_len, task), task)


def _kind_of(config: Any, known: Container[str], place: str) -> str:
    """Which of the kinds that transformers knows for a config it is. Raises InvalidInput."""
    named = " ".join(name for name in getattr(config, "architectures", None) or () if isinstance(name, str))
    for end, labels in UNFIT_TASKS.items():
        if f"For{end}" in named:
            raise InvalidInput(
                f"{place}: architectures: {named} learns from labels that no kind of data gives ({labels}); leave"
                ' "architectures" out for a language model, or give a factory of your own (--model-code)'
            )
    says_causal = "CausalLM" in named or "LMHeadModel" in named
    if "image classifier" in known and "causal" not in known:
        return "image classifier"
    if "encoder-decoder" in known and config.is_encoder_decoder and not says_causal:
        return "encoder-decoder"
    if "causal" in known and ("masked" not in known or config.is_encoder_decoder or _is_causal(config)):
        return "causal"
    if "masked" not in known:
        raise InvalidInput(
            f"{place}: model_type {config.model_type!r} is no language model or image classifier; write a factory and"
            " give it as --model-code package.module:factory"
        )
    if says_causal:
        raise InvalidInput(
            f"{place}: {config.model_type} is bidirectional: each token sees the next one, which {named} would learn to"
            ' predict; add "is_decoder": true to the config for a causal model, or leave "architectures" out for one'
            " that learns hidden tokens"
        )
    return "masked"


def _config_of(transformers: Any, fields: Mapping[str, Any], place: str) -> Any:
    known = {key: value for key, value in fields.items() if key not in ("auto_map", "quantization_config")}
    model_type = known.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise InvalidInput(
            f"{place}: model_type: must be one that this transformers ({transformers.__version__}) knows, got"
            f" {model_type!r:.60}; correct it or upgrade transformers"
        )
    try:
        return transformers.AutoConfig.for_model(model_type, **known)
    except Exception as error:
        raise InvalidInput(
            one_line(f"{place}: not a config of {model_type}: {str(error).splitlines()[0]:.200}")
        ) from None


def _hidden_tokens(config: Any, place: str, mask_token: int | None) -> HiddenTokens:
    if mask_token is None:
        raise InvalidInput(
            f"{place}: {config.model_type} is bidirectional: it learns tokens that are hidden from it; put its"
            " tokenizer.json beside the config, or give the id that hides a token as --mask-token ID to hetplanner"
            ' workload capture; or add "is_decoder": true to the config for a model that learns the next token'
        )
    if not 0 <= mask_token < config.vocab_size:
        raise InvalidInput(
            f"--mask-token: must be an id below the {config.vocab_size} of {place} (vocab_size), got {mask_token}"
        )
    return HiddenTokens(kind="hidden tokens", mask_token=mask_token, vocab=config.vocab_size)


def _continuation(config: Any, place: str) -> Continuation:
    for name in ("decoder_start_token_id", "pad_token_id", "bos_token_id"):
        found = getattr(config, name, None)
        if isinstance(found, int) and found >= 0:
            return Continuation(kind="continuation", start_token=found)
    raise InvalidInput(f"{place}: decoder_start_token_id: must be given: the decoder reads it first; add it")


def _pairs(config: Any, place: str) -> Pairs:
    pad = getattr(config, "pad_token_id", None)
    if not isinstance(pad, int) or not 0 <= pad < config.vocab_size:
        raise InvalidInput(f"{place}: pad_token_id: must be given: short sources are filled up with it; add it")
    return Pairs(kind="pairs", start_token=_continuation(config, place).start_token, pad_token=pad)


def _language_model(
    auto: Any, kind: str, config: Any, place: str, micro_batch: int, seq_len: int | None, task: Task | None
) -> Factory:
    longest = getattr(config, "max_position_embeddings", None) or DEFAULT_SEQ_LEN
    if seq_len is not None and seq_len > longest:
        raise InvalidInput(f"{place}: seq_len must be at most the model's longest, {longest}, got {seq_len}")
    length = seq_len or min(longest, DEFAULT_SEQ_LEN)
    wrapper = {"encoder-decoder": EncoderDecoder, "masked": MaskedLanguageModel}.get(kind, LanguageModel)
    ids = length * (2 if kind == "encoder-decoder" else 1)

    def factory() -> tuple[nn.Module, Tensor]:
        model = auto.from_config(config, dtype=torch.float32)
        if model._can_set_experts_implementation():
            model.set_experts_implementation("batched_mm")  # others need one number format, or sizes known to the data
        wrapped = SequenceToSequence(model, task.pad_token) if isinstance(task, Pairs) else wrapper(model)
        return wrapped, torch.zeros(micro_batch, ids, dtype=torch.int64)

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
    experts = _experts_as_saved(model, state, [name for name, tensor in state.items() if id(tensor) not in stored])
    names = {name: stored.get(id(tensor), name) for name, tensor in state.items()}
    assert captured.program is not None
    ours = {base_name(name): name for name in (*captured.program.parameters, *captured.program.buffers)}
    used = ours.keys()
    ties = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in used}
    tied = {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in ties}
    return HuggingFace(
        config=dict(fields),
        stored_names={ours[name]: saved for name, saved in names.items() if name in used and saved != ours[name]},
        stored_experts={ours[name]: patterns for name, patterns in experts.items() if name in used},
        unused=tuple(saved for name, saved in names.items() if name not in used | tied),
        adapters=adapters,
        fan_in_fan_out=adapters is not None and any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )


def _experts_as_saved(model: Any, state: dict[str, Tensor], merged: list[str]) -> dict[str, tuple[str, ...]]:
    """Of those `merged` weights that files keep expert by expert, the names there; see `HuggingFace.stored_experts`.

    Each row of a weight is numbered, and transformers tells where the numbers go. What is not whole rows in order is
    left out.
    """
    shapes = {name: state[name].shape[:2] for name in merged if state[name].ndim == EXPERTS_NDIM}
    numbered = {
        name: torch.arange(i * MOST_ROWS, i * MOST_ROWS + experts * rows, device="cpu").view(experts, rows, 1)
        for i, (name, (experts, rows)) in enumerate(shapes.items())
    }
    saved_parts = {name: t.flatten() for name, t in _as_saved(model, state | numbered).items() if not t.is_meta}
    by_row = {int(part[0]): (name, part) for name, part in saved_parts.items()}
    found = {}
    for i, (name, (experts, rows)) in enumerate(shapes.items()):
        parts = [by_row[row] for row in sorted(by_row) if i * MOST_ROWS <= row < (i + 1) * MOST_ROWS]
        if len(parts) % experts or not torch.equal(torch.cat([part for _, part in parts]), numbered[name].flatten()):
            continue
        height, count = experts * rows // len(parts), len(parts) // experts
        patterns = tuple(_pattern_of([saved for saved, _ in parts[j::count]]) for j in range(count))
        if all(len(part) == height for _, part in parts) and all(patterns):
            found[name] = patterns
    return found


def _pattern_of(names: list[str]) -> str:
    """Names that differ in their number alone, with `*` for it; '' if there is none."""
    pieces = names[0].split(".")
    for at in [at for at, piece in enumerate(pieces) if piece == "0"]:
        pattern = ".".join([*pieces[:at], "*", *pieces[at + 1 :]])
        if names == [pattern.replace("*", str(number)) for number in range(len(names))]:
            return pattern
    return ""


def _as_saved(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state under the names of files: transformers 5 has names of its own for some architectures."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    renamed: dict[str, Tensor] = revert_weight_conversion(model, dict(state))
    return renamed
