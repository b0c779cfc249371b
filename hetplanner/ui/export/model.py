"""The Export page: the plan file (shown, given, taken), and the lines that run it elsewhere; plans of either mode."""

import json
from collections.abc import Callable
from typing import Any

import param

from hetplanner.cost.check import check_plan
from hetplanner.cost.elastic.swarm_rules import checked_swarm
from hetplanner.cost.estimate import estimate_plan
from hetplanner.errors import HetplannerError, InvalidInput
from hetplanner.launchers.interface import WORKER_MODULE
from hetplanner.launchers.local import RENDEZVOUS
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.files.plan_files import AnyPlan, any_plan_from_data, plan_to_data
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json
from hetplanner.ui.export.host_files import FILES
from hetplanner.ui.settings.models.lines import plan_command, problem_snippet
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import counted, shape_text
from hetplanner.units import short_bytes

MAX_SHOWN, MAX_SHOWN_FILE = 300_000, 20_000
"""Characters of a plan, and of a file for its hosts, that are shown."""
MAX_PLAN_BYTES = 4 * 2**20
PORT = 29511

_SWARM_CLI = """\
hetplanner simulate plan.json   # a steady-state step
hetplanner simulate plan.json --lifetime 6h   # what it trains while peers come and go
hetplanner train plan.json --emulate-links --steps 100
hetplanner train plan.json --launcher ssh --hosts hosts.toml   # over its own hosts
hetplanner runs list"""
_SWARM_BY_HAND = """\
# all of it on this machine:
hetplanner train plan.json --emulate-links

# devices of other hosts join by themselves; every host has the folder that this makes:
hetplanner peer certificates certificates
# where the coordinator is; RUN_DIR holds the swarm's description, as a run of this plan writes it:
python -m hetplanner.swarm.main coordinator RUN_DIR --host HOST --certificates certificates
python -m hetplanner.swarm.main trainer HOST:PORT --certificates certificates
# on every host that serves:
hetplanner peer join HOST:PORT --host MY_HOST --certificates certificates"""
_SWARM_NOTEBOOK = """\
import hetplanner as hp
plan = hp.load_elastic_plan("plan.json")
plan.estimate
hp.plots.gantt(hp.simulate(hp.steady_state_plan(plan)))
run = hp.launch(plan, emulate_links=True, steps=100)
hp.plots.swarm_life(run)"""


class ExportModel(param.Parameterized):
    """Takes plan files; what is wrong with one stays beside its field until the next is taken.

    Attributes:
        error: why the last file was refused: path in the file, value, remedy.
        form: how the file is shown.
        launcher: whose file for the plan's hosts is shown.
    """

    error = param.String(default="")
    form: Any = param.Selector(default="tree", objects=["tree", "text"])
    launcher: Any = param.Selector(default="torchrun", objects=list(FILES))

    def __init__(self, session: Session, open_plan: Callable[[AnyPlan, str], None], **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self._open = open_plan

    def upload(self, name: str, content: bytes) -> bool:
        """Takes a plan file, checked in full, or says no; a refused one leaves the current plan as it is."""
        place = one_line(name)[:80]
        try:
            plan = checked_plan(content, place)
        except HetplannerError as error:
            self.refuse(str(error)[:1000])
            return False
        self.error = ""
        self._open(plan, place.removesuffix(".json"))
        return True

    def refuse(self, text: str) -> None:
        """Says beside the button why a file was not taken."""
        before = "" if self.session.in_hand is None else ". The plan shown below has not changed."
        self.error = text + before


@reader("plan file", at="place")
def checked_plan(content: bytes, place: str) -> AnyPlan:
    """A plan of either mode that its devices can hold, with an estimate. Raises InvalidInput, Infeasible."""
    if len(content) > MAX_PLAN_BYTES:
        raise InvalidInput(
            f"{place}: must be at most {short_bytes(MAX_PLAN_BYTES)}; use the command line for larger plans"
        )
    plan = any_plan_from_data(parse_json(content, place), place)
    try:
        if isinstance(plan, ElasticPlan):
            return checked_swarm(plan)
        check_plan(plan)
    except HetplannerError as error:
        raise type(error)(f"{place}: {error}") from None
    return plan if plan.estimate is not None else plan.replace(estimate=estimate_plan(plan))


def summary_text(plan: AnyPlan) -> str:
    """'gpt3-xl on dtfm_5_worldwide, 8 stages, 64 devices, 1f1b; by evolution, seed 0'."""
    problem, origin = plan.problem, plan.provenance
    seed = f", seed {origin.seed}" if origin.seed is not None else ""
    derived = f" {origin.derived}" if origin.derived else ""
    if isinstance(plan, ElasticPlan):
        shape = f"a swarm of {shape_text(plan)} at the start, rebalancing {plan.rebalancing.policy}"
    else:
        shape = f"{counted(len(plan.stages), 'stage')}, {counted(len(plan.ranks), 'device')}, {plan.schedule}"
    return f"{problem.workload.name} on {problem.cluster.name}, {shape}; by {origin.planner}{seed}{derived}"


def plan_text(plan: AnyPlan) -> str:
    """The plan file, as `save_plan` writes it."""
    return json.dumps(plan_to_data(plan), indent=1) + "\n"


def shown_text(plan: AnyPlan) -> str:
    """The plan file as the page shows it: cut where a browser would suffer."""
    return cut_text(plan_text(plan), MAX_SHOWN)


def cut_text(text: str, most: int) -> str:
    """At most so many characters of a file, and how many are left out."""
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} characters more: download the file"


def cli_lines(plan: AnyPlan | None) -> str:
    """Simulate the plan, then run it here on emulated links."""
    if isinstance(plan, ElasticPlan):
        return f"{plan_command(plan)}\n{_SWARM_CLI}"
    lines = [] if plan is None else [plan_command(plan)]
    lines += ["hetplanner simulate plan.json --trace trace.json   # open trace.json in Perfetto"]
    if plan is not None and plan.problem.rehearsal_of is None and len(plan.ranks) > 8:
        lines.append("# a plan of this size needs its hosts; on one machine rehearse it (Run page)")
    lines += [
        "hetplanner train plan.json --emulate-links --steps 100",
        "hetplanner runs list",
    ]
    return "\n".join(lines)


def torchrun_lines(plan: AnyPlan | None) -> str:
    """What starts all ranks of the plan on one machine by hand; of a swarm its processes, on any hosts."""
    if isinstance(plan, ElasticPlan):
        return f"{_SWARM_BY_HAND}{_group_options(plan)}"
    ranks = len(plan.processes) if plan is not None else 4
    lines = [
        "# run.json (steps, seed, data) is in the folder of plan.json;",
        "# `hetplanner train plan.json --emulate-links --dry-run` prints the exact command of this machine",
        "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo \\",
        f"torchrun --rdzv-backend={RENDEZVOUS} --rdzv-endpoint=127.0.0.1:{PORT} --nnodes=1 \\",
        f"  --nproc-per-node={ranks} --max-restarts=0 --log-dir=/dev/null -m {WORKER_MODULE} plan.json",
    ]
    return "\n".join(lines)


def _group_options(plan: ElasticPlan) -> str:
    """What `peer join` takes besides for the groups of a plan's peers."""
    problem = plan.problem
    kinds = sorted({(problem.degree_of(peer), problem.sharding_of(peer)) for peer in plan.peers} - {(1, "tensor")})
    options = [f"--tensor {d}" + ("" if s == "tensor" else f" --sharding {s}") for d, s in kinds]
    return f"\n# a peer that is a group of devices: {', or '.join(options)}" if options else ""


def notebook_snippet(plan: AnyPlan | None) -> str:
    """The plan in a notebook."""
    if isinstance(plan, ElasticPlan):
        return f"{_SWARM_NOTEBOOK}\n{problem_snippet(plan)}"
    return (
        "import hetplanner as hp\n"
        'plan = hp.load_plan("plan.json")\n'
        "plan.estimate\n"
        "hp.plots.gantt(hp.simulate(plan))\n"
        "run = hp.launch(plan, emulate_links=True, steps=100)" + ("" if plan is None else f"\n{problem_snippet(plan)}")
    )
