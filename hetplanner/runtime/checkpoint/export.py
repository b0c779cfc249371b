"""The weights of a finished run or of a checkpoint as sharded safetensors under transformers' names.

A process of its own: `python -m hetplanner.runtime.checkpoint.export RUN_DIR OUT`. It holds one shard at a time.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from hetplanner.atomic_files import check_free, write_whole
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.liveness.processes import end_process
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import check_rank_file, checkpoint_folder, load_manifest, rank_file
from hetplanner.plan.files.plan_files import load_any_plan
from hetplanner.plan.files.stage_checkpoints import FOLDER, check_checkpoint, checkpoint_path, newest_lineage
from hetplanner.plan.model import Plan
from hetplanner.reading import reading
from hetplanner.runtime.checkpoint.save import MODEL_FILE
from hetplanner.runtime.checkpoint.tensor_files import save_tensors
from hetplanner.runtime.model.aten import DTYPES
from hetplanner.runtime.model.layout import frozen_weights, running_buffers, saved_tensors, stage_weights
from hetplanner.weights.adapters import ADAPTER_FILE, Merge, adapter_parts, adapters_of, merges_of
from hetplanner.weights.folder import INDEX, WHOLE
from hetplanner.weights.names import Part, parts_of
from hetplanner.workload.workload import Workload

SHARD_BYTES = 2 * 10**9
"""Most bytes of a shard, but for a single tensor that is larger."""

Reading = Callable[[], Tensor]


def export_weights(
    run_dir: Path, out: Path, step: int | None = None, shard_bytes: int = SHARD_BYTES, *, merge: bool = False
) -> int:
    """Writes model.safetensors, or shards and their index; of a run that trains adapters adapter_model.safetensors.

    Args:
        run_dir: of a run with its plan.
        out: an existing folder.
        step: of a checkpoint; None takes the saved model.
        shard_bytes: most bytes of a shard.
        merge: add the adapters to the weights beside them, and write the whole model.

    Returns:
        Bytes of all tensors.

    Raises:
        InvalidInput: there is no such model or checkpoint, or it is damaged.
        OSError: `out` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        if step is None:
            workload, tensors = _saved(run_dir, stack)
        else:
            plan = load_any_plan(run_dir / "plan.json")
            workload = plan.problem.workload
            if isinstance(plan, ElasticPlan):
                tensors = _swarm_checkpoint(plan, run_dir / FOLDER, step, stack)
            else:
                tensors = _checkpoint(plan, checkpoint_folder(run_dir, step), stack)
        adapters = {} if merge else adapter_parts(workload)
        tensors = _with_adapters(workload, tensors) if merge else tensors
        entries = [(part, tensors[ours]) for ours, parts in (adapters or parts_of(workload)).items() for part in parts]
        total = sum(DTYPES[part.dtype].itemsize * part.num_elements for part, _ in entries)
        check_free(out, total)
        if adapters:
            save_tensors(dict(_tensors(entries)), out / ADAPTER_FILE, {"format": "pt"})
        else:
            _write(_shards(entries, shard_bytes), total, out)
    return total


def _saved(run_dir: Path, stack: contextlib.ExitStack) -> tuple[Workload, Mapping[str, Reading]]:
    workload = load_any_plan(run_dir / "plan.json").problem.workload
    path = run_dir / MODEL_FILE
    if not path.exists():
        raise InvalidInput(f"{run_dir}: holds no {MODEL_FILE}; a run saves one when it ends or is stopped")
    with reading(str(path), "saved model"):
        file = stack.enter_context(safe_open(path, framework="pt"))
    names = set(file.keys())
    wanted = {tensor.name for tensor in saved_tensors(workload)}
    if odd := sorted(names ^ wanted):
        raise InvalidInput(f"{path}: is another model than the plan's, see tensor {odd[0]!r:.80}")
    return workload, {name: _get(file, name) for name in wanted}


def _with_adapters(workload: Workload, tensors: Mapping[str, Reading]) -> dict[str, Reading]:
    """The same tensors, with adapters added to the weights that they stand beside."""
    adapters, found = adapters_of(workload), dict(tensors)
    assert adapters is not None
    for name, merges in merges_of(workload).items():
        found[name] = _merged_weight(tensors, name, merges, adapters.scale)
    return found


def _merged_weight(tensors: Mapping[str, Reading], name: str, merges: Sequence[Merge], scale: float) -> Reading:
    def merged() -> Tensor:
        weight = tensors[name]().clone()
        for merge in merges:
            added = scale * (tensors[merge.lora_b]() @ tensors[merge.lora_a]())
            rows = weight.T if merge.transposed else weight[merge.first_row : merge.first_row + added.shape[0]]
            rows += added
        return weight

    return merged


def _get(file: Any, name: str) -> Reading:
    return lambda: file.get_tensor(name)


def _checkpoint(plan: Plan, folder: Path, stack: contextlib.ExitStack) -> Mapping[str, Reading]:
    """Weights by name, of the first replica of their stage; running statistics of all replicas."""
    manifest, workload = load_manifest(folder), plan.problem.workload
    if manifest.plan != plan.digest():
        raise InvalidInput(f"{folder}: is of another plan than the run's")
    files: dict[int, Any] = {}

    def opened(rank: int) -> Any:
        if rank not in files:
            check_rank_file(folder, manifest, rank)
            with reading(f"{folder.name}/{rank_file(rank)}", "checkpoint"):
                files[rank] = stack.enter_context(safe_open(folder / rank_file(rank), framework="pt"))
        return files[rank]

    found: dict[str, Reading] = {}
    for s, stage in enumerate(plan.stages):
        file = opened(plan.rank_at(s, 0))
        for part, held in (("weights", stage_weights), ("frozen", frozen_weights)):
            for _, weight in held(workload, stage.first_op, stage.end_op):
                flat = file.get_slice(f"stage.{s}.{part}")
                found[weight.name] = _part_of_flat(flat, weight.first, weight.end, weight.shape)
    for buffer in running_buffers(workload):
        s = plan.stage_of_op[buffer.op]
        found[buffer.name] = _merged(plan, s, buffer.name, opened)
    return found


def _swarm_checkpoint(plan: ElasticPlan, folder: Path, step: int, stack: contextlib.ExitStack) -> Mapping[str, Reading]:
    """Weights by name; a swarm has no running statistics."""
    found: dict[str, Reading] = {}
    for s, stage in enumerate(plan.stages):
        path = checkpoint_path(folder, s, (newest_lineage(folder, step), step))
        check_checkpoint(path)
        with reading(str(path), "checkpoint"):
            file = stack.enter_context(safe_open(path, framework="pt"))
        for part, held in (("weights", stage_weights), ("frozen", frozen_weights)):
            for _, weight in held(plan.problem.workload, stage.first_op, stage.end_op):
                found[weight.name] = _part_of_flat(file.get_slice(part), weight.first, weight.end, weight.shape)
    return found


def _part_of_flat(flat: Any, first: int, end: int, shape: tuple[int, ...]) -> Reading:
    return lambda: flat[first:end].reshape(shape)


def _merged(plan: Plan, stage: int, name: str, opened: Callable[[int], Any]) -> Reading:
    """Statistics weighted by the replicas' micro-batches; what counts adds up since all were equal."""

    def merged() -> Tensor:
        total, count = torch.zeros((), dtype=torch.float64), sum(route.micro_batches for route in plan.routes)
        for replica in range(len(plan.stages[stage].replicas)):
            file = opened(plan.rank_at(stage, replica))
            value = file.get_tensor(f"stage.{stage}.running.{name}")
            if value.is_floating_point():
                share = sum(r.micro_batches for r in plan.routes if r.replicas[stage] == replica)
                total = total + value.double() * share / count
            else:
                since = file.get_tensor(f"stage.{stage}.counted.{name}")
                total = total + (value - since) + (since if replica == 0 else 0)
        return total.to(value.dtype)

    return merged


# -- writing --------------------------------------------------------------------------------------


def _shards(entries: list[tuple[Part, Reading]], most: int) -> list[list[tuple[Part, Reading]]]:
    shards: list[list[tuple[Part, Reading]]] = [[]]
    size = 0
    for part, read in entries:
        num_bytes = DTYPES[part.dtype].itemsize * part.num_elements
        if shards[-1] and size + num_bytes > most:
            shards.append([])
            size = 0
        shards[-1].append((part, read))
        size += num_bytes
    return shards


def _write(shards: list[list[tuple[Part, Reading]]], total: int, out: Path) -> None:
    homes: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = WHOLE if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_tensors(dict(_tensors(shard)), out / name, {"format": "pt"})
        homes |= {part.name: name for part, _ in shard}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": homes}
        write_whole(out / INDEX, json.dumps(index, indent=1) + "\n")


def _tensors(shard: list[tuple[Part, Reading]]) -> Iterator[tuple[str, Tensor]]:
    last, values = None, torch.empty(0)
    for part, read in shard:
        if read is not last:  # parts of one weight follow one another
            last, values = read, read()
        if part.shape and values.ndim > len(part.shape):
            values = values.flatten(0, values.ndim - len(part.shape))
        rows = values[part.first_row : part.first_row + part.num_rows] if part.shape else values
        yield part.name, (rows.T if part.transposed else rows).clone(memory_format=torch.contiguous_format)


def main() -> int:
    """The command line; what is wrong is one line on standard error."""
    parser = argparse.ArgumentParser(prog="hetplanner.runtime.checkpoint.export", description="Weights of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--step", type=int)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES)
    arguments = parser.parse_args()
    try:
        export_weights(arguments.run_dir, arguments.out, arguments.step, arguments.shard_bytes, merge=arguments.merge)
    except HetplannerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"{arguments.out}: cannot be written: {error.strerror or error}\n")
        return InvalidInput.exit_code
    return 0


if __name__ == "__main__":
    end_process(main())
