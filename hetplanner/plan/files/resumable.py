"""Whether a run can go on from an earlier one: from a checkpoint of its own plan, or of another. No torch.

Another plan may have other stages, replicas, devices, codecs or another number format, and be a swarm's instead of a
static one. The model, the batch and its micro-batches must be the same: the data of a step follows from them.
"""

from collections.abc import Iterator
from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import (
    check_rank_file,
    checkpoint_folder,
    checkpoint_steps,
    load_manifest,
    readable_steps,
)
from hetplanner.plan.files.plan_files import AnyPlan, load_any_plan
from hetplanner.plan.files.stage_checkpoints import (
    FOLDER,
    check_checkpoint,
    checkpoint_path,
    newest_lineage,
    saved_steps,
)
from hetplanner.plan.files.train_files import CONFIG_FILE, load_config, resume_chain
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig

PLAN_FILE = "plan.json"


def latest_saved(run_dir: Path, resume: str | None) -> Path | None:
    """A run that has a checkpoint, or the latest one before it that has; None where all has to begin anew.

    Args:
        run_dir: of the run.
        resume: the run that it went on from.
    """
    return next((one for one in (run_dir, *resume_chain(resume)) if _has_checkpoint(one)), None)


def _has_checkpoint(run_dir: Path) -> bool:
    return bool(checkpoint_steps(run_dir)) or any((run_dir / FOLDER).glob("stage-*.safetensors"))


def other_plan(run_dir: Path, plan: AnyPlan) -> AnyPlan | None:
    """The plan of an earlier run, where it is another one; None also where it cannot be read."""
    try:
        found = load_any_plan(run_dir / PLAN_FILE)
    except InvalidInput:
        return None
    return None if found.digest() == plan.digest() else found


def why_not_carried_over(old: AnyPlan, new: AnyPlan) -> str:
    """Why weights and optimizer states of one plan do not fit another; empty if they do."""
    before, after = old.problem.workload, new.problem.workload
    if (before.transformer, before.captured, before.program) != (after.transformer, after.captured, after.program):
        return f"trains another model ({before.name:.80}, not {after.name:.80})"
    for name in ("global_batch", "micro_batch", "seq_len"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            return f"has {name} {was}, the new plan {now}; give both the same, since the data of a step follows from it"
    if before.optimizer != after.optimizer:
        return f"trains with {before.optimizer}, the new plan with {after.optimizer}; give both the same optimizer"
    if old.is_local or new.is_local:
        return "or the new plan takes local steps, whose replicas differ; such a run goes on under its own plan alone"
    return ""


def carried_steps(run_dir: Path, plan: AnyPlan) -> Iterator[int | str]:
    """Checkpoints of another plan that a plan can go on from, latest first: steps, or why they are passed over."""
    old = other_plan(run_dir, plan)
    if old is None:
        return
    if why := why_not_carried_over(old, plan):
        yield f"the run's plan {why}"
        return
    if isinstance(old, ElasticPlan):
        yield from saved_steps(run_dir / FOLDER, len(old.stages))
    else:
        yield from readable_steps(run_dir, old.digest())


def check_carried(run_dir: Path, old: AnyPlan, step: int) -> None:
    """Refuses a checkpoint on this machine of which a stage cannot be read whole. Raises InvalidInput; reads all files.

    Args:
        run_dir: of the run.
        old: its plan.
        step: of the checkpoint.
    """
    if isinstance(old, ElasticPlan):
        version = newest_lineage(run_dir / FOLDER, step), step
        for stage in range(len(old.stages)):
            check_checkpoint(checkpoint_path(run_dir / FOLDER, stage, version))
        return
    folder = checkpoint_folder(run_dir, step)
    manifest = load_manifest(folder)
    for rank in range(len(old.ranks)) if old.zero else ():  # each has its shard of the optimizer's states
        check_rank_file(folder, manifest, rank)
    for stage, each in enumerate(old.stages):
        told = []
        for replica in range(len(each.replicas)):
            try:
                check_rank_file(folder, manifest, old.rank_at(stage, replica))
                break
            except InvalidInput as error:
                told.append(error)
        else:
            raise told[0]


def check_resumable(plan: Plan, config: TrainConfig) -> None:
    """Refuses to go on from a run that this plan and these settings cannot go on from. Raises InvalidInput.

    A run without a checkpoint of its own stands for the one that it went on from.
    """
    if config.resume is None:
        return
    chain, why = resume_chain(config.resume), ""
    for run_dir in chain:
        carried = list(carried_steps(run_dir, plan))
        found = [*readable_steps(run_dir, plan.digest()), *carried]
        step = next((item for item in found if isinstance(item, int)), None)
        if step is not None:
            check_goes_on(run_dir, step, config)
            return
        if told := [item for item in (*carried, *found) if isinstance(item, str)]:
            bare = "" if carried else f"; that plan is not in {PLAN_FILE} there, so no other one can take its weights"
            why = why or f"{run_dir}: {told[0]}{bare}"
    if why:
        raise InvalidInput(f"resume: {why}")
    before = f", nor do the {len(chain) - 1} that it went on from" if len(chain) > 1 else ""
    remedy = "runs write them with --checkpoint-every N"
    raise InvalidInput(f"resume: {config.resume} holds no checkpoint{before}; {remedy}")


def _seed_of(run_dir: Path, step: int) -> int:
    if (folder := checkpoint_folder(run_dir, step)).is_dir():
        return load_manifest(folder).seed
    return load_config(run_dir / CONFIG_FILE).seed


def check_goes_on(run_dir: Path, step: int, config: TrainConfig) -> None:
    """Refuses a checkpoint of another seed, or one that leaves nothing to do. Raises InvalidInput."""
    seed = _seed_of(run_dir, step)
    if seed != config.seed:
        raise InvalidInput(f"resume: {run_dir} was begun with seed {seed}, got {config.seed}; give the same seed")
    if step >= config.steps:
        raise InvalidInput(
            f"resume: {run_dir} has done {step} steps, so {config.steps} leave nothing to do; give more steps"
        )
