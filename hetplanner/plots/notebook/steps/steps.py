"""One simulated step of a plan, as the Simulate page shows it."""

from bokeh.plotting import figure

from hetplanner.plan.model import Plan
from hetplanner.plots.live import LinkLoads, MemoryCurves, StageShares, StepGantt
from hetplanner.plots.notebook.stills import shown, still
from hetplanner.simulator.replay import replay_step


def step_gantt(plan: Plan, pipeline: int | None = None) -> figure:
    """What every rank does when in a simulated step, in seconds. The rank of a worker group has a lane for each member.

    Where lanes would have no room for a label each, a group has one row.

    Args:
        plan: what is simulated.
        pipeline: a route's number; None shows all ranks, stage by stage.

    Raises:
        InvalidInput: the step has too many parts to be taken apart.
    """
    live = StepGantt()
    live.show(plan, replay_step(plan), pipeline)
    return shown(live)


def link_use(plan: Plan) -> figure:
    """The busiest links and NICs: for what share of a simulated step they carry activations, gradients, reductions.

    Raises:
        InvalidInput: the step has too many parts to be taken apart.
    """
    return still(LinkLoads(), plan, replay_step(plan))


def stage_times(plan: Plan) -> figure:
    """Where each stage's time goes in a simulated step, mean over its replicas.

    Raises:
        InvalidInput: the step has too many parts to be taken apart.
    """
    return still(StageShares(), plan, replay_step(plan))


def memory_over_time(plan: Plan, pipeline: int | None = None) -> figure:
    """Memory in use during a simulated step, as a share of what the devices hold.

    Args:
        plan: what is simulated.
        pipeline: a route's number; None takes of each stage the replica that comes nearest its limit.

    Raises:
        InvalidInput: the step has too many parts to be taken apart.
    """
    return still(MemoryCurves(), plan, replay_step(plan), pipeline)
