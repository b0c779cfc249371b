"""What a run begins with: an earlier run's checkpoint, of whichever kind the plan is, or a folder of weights."""

from pathlib import Path

from hetplanner.data.registry import is_bytes
from hetplanner.errors import InvalidInput
from hetplanner.launchers.launch_file import load_launch
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.checkpoints import checkpoint_steps
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.files.resumable import check_resumable
from hetplanner.plan.files.stage_checkpoints import FOLDER, saved_steps
from hetplanner.plan.train import TrainConfig
from hetplanner.storage.address import check_address
from hetplanner.swarm.initial_state import check_swarm_resumable, refuse_another_run
from hetplanner.weights.adapters import check_adapter
from hetplanner.weights.check import check_weights
from hetplanner.weights.tokenizer import num_words


def check_resume(plan: AnyPlan, config: TrainConfig, *, read_files: bool = True) -> None:
    """Refuses to go on from a run that this plan and these settings cannot go on from; may take a while.

    Args:
        plan, config: of the new run.
        read_files: whether a swarm's checkpoints are read to see that they are whole.

    Raises:
        InvalidInput: there is no checkpoint to go on from, or it is of another model or seed, or nothing is left to do.
    """
    if isinstance(plan, ElasticPlan) and was_on_hosts(config):
        refuse_another_run(plan, config, Path(config.resume or ""))  # what is saved, the hosts are asked
    elif isinstance(plan, ElasticPlan):
        check_swarm_resumable(plan, config, read_files=read_files)
    else:
        check_resumable(plan, config)


def was_on_hosts(config: TrainConfig) -> bool:
    """Whether the run to go on from has its checkpoints on hosts."""
    return config.resume is not None and not load_launch(Path(config.resume)).is_local


def checkpoints_of(plan: AnyPlan, run_dir: Path) -> list[int]:
    """Steps of a run's checkpoints, latest first; whether they are still whole is not looked at."""
    if isinstance(plan, ElasticPlan):
        return saved_steps(run_dir / FOLDER, len(plan.stages))
    return checkpoint_steps(run_dir)


def check_copy_to(plan: AnyPlan, config: TrainConfig, *, is_here: bool) -> None:
    """Refuses an address that checkpoints cannot be copied to; nothing is opened. Raises InvalidInput.

    Args:
        plan, config: of the new run.
        is_here: whether it runs on this machine.
    """
    if config.copy_to is None:
        return
    check_address(config.copy_to)
    if isinstance(plan, ElasticPlan) and not is_here:
        raise InvalidInput("copy_to: a swarm over hosts keeps its checkpoints on its peers' disks; they are not copied")


def check_init_from(plan: AnyPlan, config: TrainConfig, *, is_here: bool) -> None:
    """Refuses a model folder that does not fit the plan's model; nothing of it is loaded.

    Args:
        plan, config: of the new run.
        is_here: whether the folder is this machine's; ranks on hosts look at their own.

    Raises:
        InvalidInput: see `check_weights`; or data in other ids than the folder's tokenizer gives.
    """
    if config.init_from is None or config.resume is not None:
        return
    if not is_here:
        return
    check_weights(config.init_from, plan.problem.workload)
    if config.adapter is not None:
        check_adapter(config.adapter, plan.problem.workload)
    folder = Path(config.init_from).expanduser()
    if num_words(folder) is not None and is_bytes(config.data, plan.problem.workload):
        raise InvalidInput(
            f"data: {config.data or 'the default text'} is read as bytes, the tokenizer of {folder} gives other ids;"
            f" write them: hetplanner workload tokenize TEXT {folder} -o tokens, then --data tokens"
        )
