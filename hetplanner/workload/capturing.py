"""Captures models in a child process: whoever asks loads neither torch nor the model's code.

The child is `python -m hetplanner.capture`; it reads a request, runs the user's factory (or builds the model of a
Hugging Face config) in the current folder, and leaves a workload file or a line that says what is wrong.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput, RunError
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json, read_text
from hetplanner.workload.files import load_workload_file
from hetplanner.workload.workload import Workload

MAX_CONFIG_BYTES = 2**20


def capture_model_code(target: str, *, micro_batch: int | None = None, global_batch: int | None = None) -> Workload:
    """The workload of a factory of the user's own.

    Args:
        target: `package.module:factory`, importable from the current folder. The factory returns (module, example
            inputs): with one example input the module returns logits [..., classes] and the sum of cross-entropies
            is added; with two (inputs, labels) it returns the summed loss itself. The first axis of the examples is
            the micro-batch.
        micro_batch: samples in a micro-batch instead of the examples'.
        global_batch: samples in a step.

    Raises:
        InvalidInput: no such factory, or a module that cannot be captured: names the line and what to change.
    """
    module, colon, factory = target.partition(":")
    parts = (*module.split("."), *factory.split("."))
    if not colon or not all(part.isidentifier() for part in parts):
        raise InvalidInput(f"--model-code: must be package.module:factory, got {target!r:.80}")
    return _captured({"model_code": target, "micro_batch": micro_batch, "global_batch": global_batch})


@reader("Hugging Face config", at="source")
def capture_config(
    source: str | Path, *, micro_batch: int | None = None, global_batch: int | None = None, seq_len: int | None = None
) -> Workload:
    """The workload of any causal language model or image classifier that transformers knows, from its `config.json`.

    Args:
        source: path of the file or of its folder.
        micro_batch: samples in a micro-batch; 1 if not given.
        global_batch: samples in a step.
        seq_len: tokens in a sequence; the model's longest but at most 1024 if not given.

    Raises:
        InvalidInput: no config, transformers is missing, an unknown model, or one that cannot be captured.
    """
    path = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
    text = read_text(path, MAX_CONFIG_BYTES)
    fields, place = parse_json(text, one_line(path.name)), one_line(path.name)
    if not isinstance(fields, dict):
        raise InvalidInput(f"{place}: must be a JSON object, got {type(fields).__name__}")
    stem = path.parent.name if path.stem == "config" else path.stem
    request = {
        "config": fields,
        "place": place,
        "name": "".join(c for c in stem if c.isprintable()).strip()[:100] or str(fields.get("model_type"))[:100],
        "digest": hashlib.sha256(text).hexdigest(),
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "seq_len": seq_len,
    }
    return _captured(request)


def _captured(request: Mapping[str, Any]) -> Workload:
    with tempfile.TemporaryDirectory(prefix="hetplanner-capture-") as folder:
        asked, answer, refusal = (Path(folder, name) for name in ("request.json", "workload.json", "refusal.txt"))
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "hetplanner.capture", str(asked), str(answer), str(refusal)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if refusal.is_file():
            raise InvalidInput(refusal.read_text(encoding="utf-8"))
        if done.returncode != 0 or not answer.is_file():
            words = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no word")
            raise RunError(one_line(f"the capturing process ended with code {done.returncode}: {words:.300}"))
        return load_workload_file(answer)
