"""Stage files of a swarm from another plan's checkpoint: `python -m ... RUN_DIR SOURCE_DIR LINEAGE STEP`.

The checkpoint is a static run's, or that of a swarm with other stages; all its files are on this machine. Weights and
optimizer states are taken over by their names. What cannot be read is told on stderr in one line.
"""

import errno
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hetplanner.atomic_files import check_free
from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import InvalidInput
from hetplanner.liveness.processes import end_process
from hetplanner.plan.files.plan_files import load_elastic_plan
from hetplanner.plan.files.resumable import PLAN_FILE, other_plan
from hetplanner.plan.files.stage_checkpoints import FOLDER
from hetplanner.plan.files.train_files import CONFIG_FILE, load_config
from hetplanner.runtime.checkpoint.earlier_state import EarlierState, earlier_state, stage_pieces
from hetplanner.runtime.model.layout import held_weights
from hetplanner.swarm.peer.state import StageState, save_checkpoint, state_sizes
from hetplanner.swarm.spec import SwarmSpec, spec_of


def convert(run_dir: Path, source_dir: Path, version: Version) -> None:
    """Writes a checkpoint of all stages into a run's folder.

    Args:
        run_dir: of the swarm.
        source_dir: of the run to go on from.
        version: of the new files; its step is the checkpoint's.

    Raises:
        InvalidInput: the checkpoint is damaged or of another model.
        OSError: the files cannot be written.
    """
    plan = load_elastic_plan(run_dir / PLAN_FILE)
    spec = spec_of(plan, load_config(run_dir / CONFIG_FILE))
    old = other_plan(source_dir, plan)
    if old is None:
        raise InvalidInput(f"{source_dir}: its plan cannot be read")
    source = earlier_state(old, 0, source_dir, version.step)
    if why := source.why_not([set(range(len(source.ops)))]):
        raise InvalidInput(f"{source_dir}: {why}")
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for stage in range(spec.num_stages):
        state = _stage_state(spec, source, stage, version)
        check_free(folder, sum(tensor.nbytes for tensor in state.tensors.values()))
        save_checkpoint(state, folder, kept=1)


def _stage_state(spec: SwarmSpec, source: EarlierState, stage: int, version: Version) -> StageState:
    tensors = {name: torch.empty(size) for name, size in state_sizes(spec, stage).items()}
    first_op, end_op = spec.ops_of(stage)
    pieces = stage_pieces(spec.workload, first_op, end_op)
    for _, weight in held_weights(spec.workload, first_op, end_op):
        for part, piece in pieces[weight.name].items():
            source.take_weight(weight, part, 0, tensors[part][piece.first : piece.end])
    if "in_use" in tensors:
        tensors["in_use"] = tensors["weights"]
    return StageState(stage, version, int(source.numbers["updates"]), tensors)


def main(argv: list[str]) -> int:
    """Converts, and says what went wrong; an exit status of ENOSPC: the disk is full."""
    run_dir, source_dir, lineage, step = Path(argv[0]), Path(argv[1]), int(argv[2]), int(argv[3])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        convert(run_dir, source_dir, Version(lineage, step))
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{source_dir}: {os.strerror(error.errno or errno.EIO)}", file=sys.stderr)
        return errno.ENOSPC if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
