"""The run that goes on in a run's place when hosts have left or returned; its head has made the plan."""

from pathlib import Path

from hetplanner.errors import InvalidInput
from hetplanner.hosts.changes.next_plan import NEXT_PLAN_FILE, load_next
from hetplanner.launchers.launch_file import Launch, load_launch
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan, load_plan
from hetplanner.plan.files.resumable import latest_saved
from hetplanner.plan.model import Plan
from hetplanner.plan.train import TrainConfig

LAUNCHER = "ssh"
"""The one that plans anew: Slurm and Kubernetes bring hosts of their own."""


def check_replan(plan: AnyPlan, config: TrainConfig, launch: Launch | None) -> None:
    """Refuses `replan` where nothing would be planned anew. Raises InvalidInput."""
    if not config.replan:
        return
    if isinstance(plan, ElasticPlan):
        raise InvalidInput("replan: a swarm continues without a lost host; remove the option")
    if launch is None or launch.launcher != LAUNCHER:
        name = "local" if launch is None else launch.launcher
        raise InvalidInput(f"replan: launcher {name} cannot plan again; use --launcher {LAUNCHER}, or remove it")
    if config.max_restarts < 1 and not launch.away:
        raise InvalidInput("replan: a lost host is waited for in a restart; give --max-restarts 1 or more")


def successor_of(run_dir: Path, config: TrainConfig, restarts: int) -> tuple[Plan, TrainConfig, Launch] | None:
    """What goes on in a run's place; None: its last attempt has not ended for other hosts, or no restart is left.

    Args:
        run_dir: of the run.
        config: its settings.
        restarts: how often it was started again. Its successor has those that are left; a loss costs one at least.

    Raises:
        InvalidInput: a file of the run is damaged.
    """
    found = load_next(run_dir)
    if found is None or found.attempt != restarts:
        return None
    launch = load_launch(run_dir)
    is_loss = len(found.away) > len(launch.away)
    left = config.max_restarts - max(restarts, int(is_loss))
    if left < 0:
        return None
    saved = latest_saved(run_dir, config.resume)
    settings = config.replace(resume=str(saved) if saved is not None else None, max_restarts=left)
    first = launch.first or str(run_dir)
    return load_plan(run_dir / NEXT_PLAN_FILE), settings, launch.replace(run=None, first=first, away=found.away)
