"""Using a trained model: loading it from a run directory, and sampling text from it."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.liveness.processes import end_process
from hetplanner.reading import reader
from hetplanner.runtime.checkpoint.save import FORMAT, MODEL_FILE, MODEL_INFO_FILE
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.model.captured import ProgramStage
from hetplanner.runtime.model.layout import saved_tensors
from hetplanner.runtime.model.predict import captured_predictor
from hetplanner.runtime.model.transformer_stage import TransformerStage
from hetplanner.schema import check_format, checked, parse_json, read_text
from hetplanner.workload.transformer import TransformerConfig
from hetplanner.workload.workload import Workload

MAX_PROMPT_BYTES = 100_000
VOCAB = 256
"""Text is bytes; a model may know more tokens."""


@reader("saved model", at="run_dir")
def load_model(run_dir: str | os.PathLike[str]) -> StageModel:
    """The whole model of a run.

    Args:
        run_dir: holds model.json and model.safetensors (or one part per stage, after a stop in which the ranks
            could not meet).

    Raises:
        InvalidInput: nothing was saved there, or the files do not belong together.
    """
    folder = Path(run_dir)
    files = (
        [folder / MODEL_FILE] if (folder / MODEL_FILE).exists() else sorted(folder.glob("model-stage-*.safetensors"))
    )
    if not files or not (folder / MODEL_INFO_FILE).exists():
        raise InvalidInput(f"{folder}: holds no saved model; a run saves one when it ends or is stopped")
    info = check_format(
        parse_json(read_text(folder / MODEL_INFO_FILE), MODEL_INFO_FILE), "model", int(FORMAT[-1]), MODEL_INFO_FILE
    )
    workload = _workload_of(info)
    _check(workload, files)
    model = StageModel(workload, 0, len(workload.graph.ops), seed=None)
    _fill(model, files)
    return model


def _workload_of(info: dict[str, Any]) -> Workload:
    if "workload" in info:
        return checked(Workload, info["workload"], f"{MODEL_INFO_FILE}: workload", from_file=True)
    config = checked(TransformerConfig, info.get("transformer"), f"{MODEL_INFO_FILE}: transformer", from_file=True)
    fields = {"name": config.name, "transformer": config, "global_batch": 1, "micro_batch": 1, "dtype": "float32"}
    fields |= {"seq_len": info.get("seq_len"), "fine_tuning": info.get("fine_tuning")}
    return checked(Workload, fields, MODEL_INFO_FILE)


def _check(workload: Workload, files: list[Path]) -> None:
    """Refuses files that hold other tensors than the model has, before memory is taken for it. Raises InvalidInput."""
    missing = {tensor.name: tensor.shape for tensor in saved_tensors(workload)}
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if missing.pop(name, None) != tuple(file.get_slice(name).get_shape()):
                    raise InvalidInput(f"{path}: weight {name!r:.80} does not fit the model in {MODEL_INFO_FILE}")
    if missing:
        raise InvalidInput(f"{files[0].parent}: {len(missing)} weights were not saved, the first is {min(missing)!r}")


@torch.no_grad()
def _fill(model: StageModel, files: list[Path]) -> None:
    tensors = model.saved_tensors()
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                tensors[name].copy_(file.get_tensor(name))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"{path}: cannot be read as safetensors: {error!s:.300}") from None


@torch.inference_mode()
def generate(model: StageModel, prompt: str, tokens: int = 200, temperature: float = 0.8, seed: int = 0) -> str:
    """Continues a text.

    Args:
        model: from `load_model`.
        prompt: UTF-8 text; empty starts from a line break.
        tokens: bytes to add.
        temperature: 0 takes the likeliest byte; 1 samples from the model as it is.
        seed: of the draws.

    Returns:
        The prompt and its continuation; bytes that are no UTF-8 show as replacement characters.

    Raises:
        InvalidInput: a negative temperature or number of tokens, a prompt that is too long, or a model that does
            not continue text.
    """
    if temperature < 0 or tokens < 0:
        raise InvalidInput(f"sample: tokens and temperature must be 0 or more, got {tokens} and {temperature}")
    text = list((prompt or "\n").encode())
    if len(text) > MAX_PROMPT_BYTES:
        raise InvalidInput(f"sample: the prompt must be at most {MAX_PROMPT_BYTES} bytes, got {len(text)}")
    generator = torch.Generator().manual_seed(seed)
    predict, window = _predictor(model)
    for _ in range(tokens):
        text.append(_drawn(predict(text[-window:])[:VOCAB], temperature, generator))
    return bytes(text).decode("utf-8", errors="replace")


def _predictor(model: StageModel) -> tuple[Callable[[list[int]], Tensor], int]:
    """Logits [V] of the token behind some tokens, and how many of them the model can see."""
    ops, config = model.stage_ops, model.workload.transformer
    if isinstance(ops, TransformerStage):
        assert config is not None
        return lambda text: ops.logits(torch.tensor([text]))[0, -1], config.max_seq_len
    assert isinstance(ops, ProgramStage)
    return captured_predictor(ops, model.workload)


def _drawn(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    return int(torch.multinomial((logits_V / temperature).softmax(dim=0), 1, generator=generator))


def main() -> int:
    """`python -m hetplanner.runtime.model.sample RUN_DIR PROMPT`: writes the text to standard output."""
    parser = argparse.ArgumentParser(prog="hetplanner.runtime.model.sample", description="Text from a trained model.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("prompt", nargs="?", default="")
    parser.add_argument("--stdin", action="store_true", help="read the prompt from standard input")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        prompt = arguments.prompt
        if arguments.stdin:
            prompt = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1).decode("utf-8", errors="replace")
        model = load_model(arguments.run_dir)
        text = generate(model, prompt, arguments.tokens, arguments.temperature, arguments.seed)
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    end_process(main())
