"""Captures models in a child process: the caller loads neither torch nor the model's code.

The child is `python -m hetplanner.capture`; it reads a request, runs the user's factory (or builds the model of a
Hugging Face config) in the current folder, and leaves a workload file or a line that says what is wrong. It leads a
session of its own, and is killed with all that it started at the time limit, at Ctrl-C, or when its parent dies.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hetplanner.errors import InvalidInput, RunError
from hetplanner.liveness.processes import killed_at_end
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json, read_text
from hetplanner.workload.capturing.kept import digest_of, keep_capture, kept_capture
from hetplanner.workload.files import load_workload_file
from hetplanner.workload.workload import Workload

MAX_CONFIG_BYTES = 2**20
MAX_TOKENIZER_BYTES = 64 * 2**20
MASKS = ("[MASK]", "<mask>")
"""What tokenizers of bidirectional models call it."""
CAPTURE_TIMEOUT_S = 120.0
"""Tracing takes some 10 ms a layer; a model that unrolls a loop over its tokens takes minutes."""
MAX_LAYERS = 1000
"""Of a config that is captured, as of models by formula."""
LOOK_EVERY_S = 0.2
LAYER_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
"""What configs of the families call their number of layers."""

OnProgress = Callable[[float, str], object]
"""Takes the seconds so far, and what the child does."""


def capture_model_code(
    target: str,
    *,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    freeze: Sequence[str] = (),
    timeout_s: float = CAPTURE_TIMEOUT_S,
    on_progress: OnProgress | None = None,
) -> Workload:
    """The workload of a factory of the user's own.

    Args:
        target: `package.module:factory`, importable from the current folder. The factory returns (module, example
            inputs): with one example input the module returns logits [..., classes] and the sum of cross-entropies
            is added; with two (inputs, labels) it returns the summed loss itself. The first axis of the examples is
            the micro-batch.
        micro_batch: samples in a micro-batch instead of the examples'.
        global_batch: samples in a step.
        freeze: patterns of names of parameters that are not trained, such as encoder.*; so are those that the factory
            gives without `requires_grad`.
        timeout_s: seconds after which it is given up.
        on_progress: called several times a second while it goes on; an exception of its ends the capture.

    Raises:
        InvalidInput: no such factory, or a module that cannot be captured, which names the line and what to change;
            or it takes longer than `timeout_s`.
    """
    module, colon, factory = target.partition(":")
    parts = (*module.split("."), *factory.split("."))
    if not colon or not all(part.isidentifier() for part in parts):
        raise InvalidInput(f"--model-code: must be package.module:factory, got {target!r:.80}")
    request = {
        "model_code": target,
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "freeze": list(freeze),
    }
    return _captured(request, f"--model-code {target}", timeout_s, on_progress)


@reader("Hugging Face config", at="source")
def capture_config(
    source: str | Path,
    *,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    adapters: str | None = None,
    freeze: Sequence[str] = (),
    mask_token: int | None = None,
    pairs: bool = False,
    fresh: bool = False,
    timeout_s: float = CAPTURE_TIMEOUT_S,
    on_progress: OnProgress | None = None,
    on_kept: Callable[[], object] | None = None,
) -> Workload:
    """The workload of a language model or image classifier that transformers knows, from its `config.json`.

    Args:
        source: path of the file or of its folder.
        micro_batch: samples in a micro-batch; 1 if not given.
        global_batch: samples in a step.
        seq_len: tokens in a sequence; the model's longest but at most 1024 if not given. Of an encoder-decoder model,
            tokens that each of the two reads.
        adapters: RANK[:ALPHA[:TARGET,...]]; PEFT puts them beside linear layers, and all else is frozen.
        mask_token: id of what hides a token from a bidirectional model; that of a tokenizer.json beside the config if
            not given.
        pairs: whether an encoder-decoder model learns pairs of a source and a target, and does not go on with a text.
        fresh: capture it although the same was captured before and kept: see :mod:`hetplanner.workload.capturing.kept`.
        freeze, timeout_s, on_progress: as for `capture_model_code`.
        on_kept: called if the capture is a kept one.

    Raises:
        InvalidInput: no config, transformers is missing, an unknown model, one of more than MAX_LAYERS layers, one
            that cannot be captured, or one that takes longer than `timeout_s`.
    """
    path = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
    if adapters is not None and freeze:
        raise InvalidInput("freeze: with adapters all other weights are frozen; leave one of the two out")
    request = _config_of(path) | {
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "seq_len": seq_len,
        "adapters": adapters,
        "freeze": list(freeze),
        "mask_token": mask_token,
        "pairs": pairs,
    }
    tokenizer = path.parent / "tokenizer.json"
    if tokenizer.is_file():
        request["tokenizer"] = hashlib.sha256(read_text(tokenizer, MAX_TOKENIZER_BYTES)).hexdigest()
    digest = digest_of(request)
    if tokenizer.is_file():
        request["tokenizer"] = str(tokenizer.absolute())
    kept = None if fresh else kept_capture(digest)
    if kept is None:
        kept = _captured(request, request["place"], timeout_s, on_progress)
        keep_capture(digest, kept)
    elif on_kept is not None:
        on_kept()
    return kept


def _config_of(path: Path) -> dict[str, Any]:
    """What a capture asks of a config: content, digest and names. Raises InvalidInput."""
    text, place = read_text(path, MAX_CONFIG_BYTES), one_line(path.name)
    fields = parse_json(text, place)
    if not isinstance(fields, dict):
        raise InvalidInput(f"{place}: must be a JSON object, got {type(fields).__name__}")
    _refuse_deep(fields, place)
    stem = path.parent.name if path.stem == "config" else path.stem
    name = "".join(c for c in stem if c.isprintable()).strip()[:100] or str(fields.get("model_type"))[:100]
    return {"config": fields, "place": place, "name": name, "digest": hashlib.sha256(text).hexdigest()}


@reader("tokenizer", at="path")
def mask_of_tokenizer(path: Path) -> int | None:
    """The id of what hides a token, from a tokenizer.json; None if it has none. Raises InvalidInput."""
    fields = parse_json(read_text(path, MAX_TOKENIZER_BYTES), one_line(path.name))
    tokens = fields.get("added_tokens") if isinstance(fields, dict) else None
    for token in tokens if isinstance(tokens, list) else ():
        found = token.get("id") if isinstance(token, dict) and token.get("content") in MASKS else None
        if isinstance(found, int):
            return found
    return None


def _refuse_deep(fields: Mapping[str, Any], place: str) -> None:
    for name in LAYER_FIELDS:
        count = fields.get(name)
        if isinstance(count, int) and count > MAX_LAYERS:
            raise InvalidInput(f"{place}: {name}: must be at most {MAX_LAYERS} to be captured, got {count}; give fewer")


def _captured(request: Mapping[str, Any], place: str, timeout_s: float, on_progress: OnProgress | None) -> Workload:
    with tempfile.TemporaryDirectory(prefix="hetplanner-capture-") as folder:
        files = [Path(folder, name) for name in ("request.json", "workload.json", "refusal.txt", "progress.txt")]
        asked, answer, refusal, progress = files
        asked.write_text(json.dumps(request), encoding="utf-8")
        with Path(folder, "errors.txt").open("w+b") as errors, _child(files, errors) as child:
            _await(child, progress, place, timeout_s, on_progress)
            errors.seek(0)
            said = errors.read().decode(errors="replace").splitlines()
        if refusal.is_file():
            raise InvalidInput(refusal.read_text(encoding="utf-8"))
        if child.returncode != 0 or not answer.is_file():
            words = next((line for line in reversed(said) if line.strip()), "no word")
            raise RunError(f"the capturing process ended with code {child.returncode}: {words:.300}")
        return load_workload_file(answer)


@contextmanager
def _child(files: Sequence[Path], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The capturing process; it and its children are dead at the end."""
    theirs, ours = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "hetplanner.capture", *map(str, files), str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Left to itself torch keeps compiled code under a name in /tmp that another user may take first.
            env={"TORCHINDUCTOR_CACHE_DIR": str(files[0].parent)} | os.environ,
            stderr=errors,
            pass_fds=[theirs],
            start_new_session=True,
        )
        with killed_at_end(child):
            yield child
    finally:
        os.close(theirs)
        os.close(ours)


def _await(
    child: subprocess.Popen[bytes], progress: Path, place: str, timeout_s: float, on_progress: OnProgress | None
) -> None:
    began_s, doing = time.monotonic(), "loading torch"
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_EVERY_S)
            return
        with suppress(OSError):
            doing = progress.read_text(encoding="utf-8") or doing
        spent_s = time.monotonic() - began_s
        if spent_s > timeout_s:
            raise InvalidInput(
                f"{place}: the capture was given up after {timeout_s:g} s while {doing}; give it more time"
                " (hetplanner workload capture --capture-timeout SECONDS), a shorter sequence or fewer layers"
            )
        if on_progress is not None:
            on_progress(spent_s, doing)
