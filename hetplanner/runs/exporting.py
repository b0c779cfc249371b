"""A run's model as a Hugging Face folder: weights, config, tokenizer, generation config and a model card.

The folder is written beside its place and moved there when it is whole. torch is imported in a process of its own.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput, RunError, last_line
from hetplanner.reading import reading
from hetplanner.runs.model_card import base_model, model_card
from hetplanner.runs.resuming import checkpoints_of
from hetplanner.runs.run import Run
from hetplanner.schema import parse_json, read_text, write_text
from hetplanner.weights.adapters import ADAPTER_CONFIG, adapter_config, adapters_of
from hetplanner.weights.config import TRANSIENT, config_of
from hetplanner.weights.folder import CONFIG, MAX_CONFIG_BYTES
from hetplanner.weights.tokenizer import FILES

EXPORTER_MODULE = "hetplanner.runtime.checkpoint.export"
GENERATION = "generation_config.json"
SHARD_BYTES = 2 * 10**9


def export_model(
    run: Run, out: Path, step: int | None = None, *, shard_bytes: int = SHARD_BYTES, merge: bool = False
) -> int:
    """Writes the folder; transformers' `from_pretrained` loads it, and PEFT's the folder of a run's adapters.

    Args:
        run: one that has saved its model, or a checkpoint.
        out: the folder; it must not exist, or be empty.
        step: of the checkpoint to take; None takes the model that was saved at the end.
        shard_bytes: most bytes of a shard.
        merge: of a run that trains adapters, add them to the model's weights and write the whole model.

    Returns:
        The step that the model is of.

    Raises:
        InvalidInput: nothing was saved, transformers has no such model, or `out` cannot be used; nothing is written.
        RunError: the exporting process failed.
    """
    step_of = _check(run, step)
    _refuse_used(out)
    adapters = adapters_of(run.any_plan.problem.workload)
    if merge and adapters is None:
        raise InvalidInput(f"run {run.id}: has trained no adapters, so there is nothing to merge; leave out --merge")
    config, source = _config(run)
    draft = out.with_name(f".{out.name}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        _write_weights(run, draft, step, shard_bytes, merge=merge)
        if adapters is not None and not merge:
            fields = adapter_config(run.any_plan.problem.workload, base_model(run))
            write_text(draft / ADAPTER_CONFIG, json.dumps(fields, indent=2, sort_keys=True) + "\n")
        else:
            write_text(draft / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
            _write_companions(source, config, draft)
        write_text(draft / "README.md", model_card(run, step_of, merge=merge))
        draft.rename(out)
    except OSError as error:
        raise InvalidInput(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return step_of


def _check(run: Run, step: int | None) -> int:
    """The step of what is exported. Raises InvalidInput."""
    steps = checkpoints_of(run.any_plan, run.path)
    if step is None:
        if not run.directory.model_file.exists():
            there = f"; there are checkpoints: --step {steps[0]}" if steps else ""
            raise InvalidInput(f"run {run.id}: has no model yet; it is written when the run ends or is stopped{there}")
        with reading("model.json", "saved model"):
            return int(parse_json(read_text(run.path / "model.json"), "model.json")["steps_of_stages"][0])
    if step not in steps:
        known = f"has {', '.join(map(str, steps))}" if steps else "has none"
        raise InvalidInput(f"run {run.id}: no checkpoint of step {step}; it {known}")
    return step


def _refuse_used(out: Path) -> None:
    try:
        if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
            return
        if out.exists() or out.is_symlink():
            raise InvalidInput(f"{out}: exists and is not an empty folder; give a new one")
    except OSError as error:
        raise InvalidInput(f"{out}: cannot be used: {error.strerror}") from None


def _config(run: Run) -> tuple[dict[str, Any], Path | None]:
    """The content of config.json, and the folder that the run began with, if it is still there."""
    begun = run.config.init_from
    source = Path(begun).expanduser() if begun is not None else None
    if source is None or not (source / CONFIG).is_file():
        return config_of(run.any_plan.problem.workload), None
    with reading(f"{source}: {CONFIG}", "Hugging Face config"):
        fields = parse_json(read_text(source / CONFIG, MAX_CONFIG_BYTES), CONFIG)
        kept = {name: value for name, value in fields.items() if name not in TRANSIENT}
    return kept | {"dtype": "float32"}, source


def _write_companions(source: Path | None, config: dict[str, Any], out: Path) -> None:
    """Tokenizer and generation settings of the model that the run began with."""
    for name in (*FILES, GENERATION):
        if source is not None and (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    if not (out / GENERATION).exists() and "vocab_size" in config:
        ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        known = {name: value for name, value in ids.items() if value is not None}
        write_text(out / GENERATION, json.dumps({"_from_model_config": True} | known, indent=2) + "\n")


def _write_weights(run: Run, out: Path, step: int | None, shard_bytes: int, *, merge: bool) -> None:
    command = [sys.executable, "-m", EXPORTER_MODULE, str(run.path), str(out), f"--shard-bytes={shard_bytes}"]
    command += [f"--step={step}"] if step is not None else []
    command += ["--merge"] if merge else []
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        message = last_line(done.stderr)
        if done.returncode == InvalidInput.exit_code:
            raise InvalidInput(f"run {run.id}: {message}")
        raise RunError(f"run {run.id}: exporting failed: {message}")
