"""The child process that runs a user's factory: see :mod:`hetplanner.workload.capturing.capture`."""

import hashlib
import importlib
import inspect
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from hetplanner.capture import progress
from hetplanner.capture.adapters import wanted_adapters, with_adapters, with_frozen
from hetplanner.capture.assemble import capture_workload
from hetplanner.capture.export import Factory
from hetplanner.capture.huggingface import config_factory, known_to_transformers
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.liveness.processes import end_process
from hetplanner.schema import one_line
from hetplanner.workload.files import save_workload
from hetplanner.workload.workload import Workload


def main(request_file: str, answer_file: str, refusal_file: str, progress_file: str, lifeline: str) -> int:
    """Answers one request; returns the exit code.

    Args:
        request_file, answer_file, refusal_file, progress_file: see `hetplanner.workload.capturing.capture`.
        lifeline: number of a pipe's end; when the other one closes, this process ends.
    """
    progress.end_with_parent(int(lifeline), Path(request_file).parent)
    progress.write_progress(Path(progress_file))
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    try:
        save_workload(_captured(request), answer_file)
    except HetplannerError as error:
        Path(refusal_file).write_text(one_line(str(error)), encoding="utf-8")
        return error.exit_code
    return 0


def _captured(request: dict[str, Any]) -> Workload:
    sizes = {"micro_batch": request["micro_batch"], "global_batch": request["global_batch"]}
    if "model_code" in request:
        target = request["model_code"]
        factory, name = _factory(target), target.partition(":")[2]
        if request.get("freeze"):
            factory = with_frozen(factory, request["freeze"], f"--model-code {target}")
        return capture_workload(factory, name, provenance=_code_provenance(target, factory), **sizes)
    factory = config_factory(
        request["config"],
        request["place"],
        micro_batch=request["micro_batch"] or 1,
        seq_len=request["seq_len"],
        mask_token=request["mask_token"],
        tokenizer=Path(request["tokenizer"]) if "tokenizer" in request else None,
        pairs=request["pairs"],
    )
    changed: Factory = factory
    adapters = None
    if request.get("adapters"):
        adapters = wanted_adapters(request["adapters"], str(request["config"].get("model_type")))
        changed = with_adapters(factory, adapters, request["place"])
    elif request.get("freeze"):
        changed = with_frozen(factory, request["freeze"], request["place"])
    provenance = _config_provenance(request)
    captured = capture_workload(changed, request["name"], provenance=provenance, task=factory.task, **sizes)
    return captured.replace(huggingface=known_to_transformers(factory, request["config"], captured, adapters))


def _factory(target: str) -> Factory:
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, ModuleNotFoundError) else f" ({last.filename}:{last.lineno})"
        raise InvalidInput(
            f"--model-code {target}: cannot import {module_name}: {type(error).__name__}: {error}{where}; run from the"
            " folder that holds it, or install it"
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidInput(f"--model-code {target}: {module_name} has no function {path}; name a factory in it")
    return found


def _code_provenance(target: str, factory: Factory) -> str:
    try:
        file = Path(inspect.getsourcefile(factory) or "")
        digest = f"{file.name} sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
    except (TypeError, OSError):
        digest = "without a source file"
    return f"captured from {target} ({digest}) with torch {torch.__version__}"


def _config_provenance(request: dict[str, Any]) -> str:
    import transformers

    return one_line(
        f"captured from {request['place']} (model_type {request['config'].get('model_type')}, sha256"
        f" {request['digest']}) with transformers {transformers.__version__}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
