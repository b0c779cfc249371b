"""What pages made for routes show of an elastic plan: a steady-state step, and in words what that leaves out."""

from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan
from hetplanner.plan.model import Plan
from hetplanner.ui.shell.models.texts import shape_text

MOST_PEERS = 24
"""Of a stage, in a line."""
LEFT_OUT = (
    "a steady-state step of it, as if all peers of its start stayed. Joins, losses and moves are not in these figures."
    " A plan that is changed or searched here becomes static. Run and Export hold the swarm itself."
)


def static_view(plan: AnyPlan) -> Plan:
    """A static plan as it is; of an elastic one its steady-state step."""
    return steady_state_plan(plan) if isinstance(plan, ElasticPlan) else plan


def swarm_words(plan: ElasticPlan | None) -> str:
    """What is seen of the current elastic plan, and what is not; '' without one."""
    return "" if plan is None else f"{shape_text(plan)} at the start. Shown is {LEFT_OUT}"


def peer_lines(plan: ElasticPlan) -> list[tuple[str, str]]:
    """('Stage 0', 'embedding … layer 3: d0, d1') for every stage."""
    lines = []
    for s, stage in enumerate(plan.stages):
        ops, more = plan.ops_of(s), len(stage.peers) - MOST_PEERS
        shown = map(plan.problem.worker_name, stage.peers[:MOST_PEERS])
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        lines.append((f"Stage {s}", f"{ops[0].name} … {ops[-1].name}: {names}"))
    return lines
