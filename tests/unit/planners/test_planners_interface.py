import signal

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.plan.problem import Constraints, Problem
from hetplanner.planners.interface import Budget, CancelledWhileCompiling, PlannerSettings, Progress
from hetplanner.planners.registry import make_planner, planner_names, planner_type
from hetplanner.planners.search.interrupts import Interrupts
from tests.support.plans.factories import small_cluster, tiny_workload
from tests.support.processes.imported import imported


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("5s", Budget(seconds=5)),
        ("10 s", Budget(seconds=10)),
        ("2 min", Budget(seconds=120)),
        ("0.5", Budget(seconds=0.5)),
        (3, Budget(seconds=3)),
        ("20000 evaluations", Budget(evaluations=20000)),
        (Budget(evaluations=1), Budget(evaluations=1)),
        (None, Budget(seconds=10)),
    ],
)
def test_budgets_read_as_people_write_them(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 parsecs", -1, float("inf"), float("nan")])
def test_other_budgets_are_refused(text):
    with pytest.raises(InvalidInput, match="budget"):
        Budget.parse(text)


@pytest.mark.parametrize("limits", [{"seconds": -1.0}, {"seconds": float("nan")}, {"evaluations": -1}])
def test_budgets_made_by_hand_obey_the_same_laws(limits):
    with pytest.raises(InvalidInput, match="budget"):
        Budget(**limits)


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("name", planner_names())
def test_seeds_out_of_range_are_refused(name, seed):
    objective = planner_type(name).objectives[0]
    one = Constraints(stages=1, replicas=1)
    task = Problem(cluster=small_cluster(1), workload=tiny_workload(), objective=objective, constraints=one)
    with pytest.raises(InvalidInput, match="seed"):
        make_planner(name).solve(task, seed=seed, budget="0 s")


def test_a_budget_says_what_it_is():
    assert Budget(seconds=5).text() == "5 s"
    assert Budget(seconds=5, evaluations=9).text() == "5 s or 9 evaluations"


def test_the_budget_of_time_starts_when_the_search_does():
    now = [0.0]
    progress = Progress(Budget(seconds=2), None, None, clock=lambda: now[0])
    now[0] = 50.0  # compiling
    progress.start_budget()
    assert not progress.is_over()
    now[0] = 52.0
    assert progress.is_over()
    assert progress.seconds == 52.0


def test_compiling_kernels_takes_no_budget_and_asks_between_two_whether_to_go_on():
    now, stops = [0.0], [False]
    progress = Progress(Budget(seconds=2), None, lambda: stops[0], clock=lambda: now[0])
    progress.start_budget()
    now[0] = 1.0
    progress.compiling_began()
    progress.compiling_began()  # a kernel that the first one calls
    now[0] = 30.0
    progress.compiling_ended()
    now[0] = 50.0
    progress.compiling_ended()
    assert progress.remaining_seconds == 1.0
    assert progress.seconds == 50.0
    stops[0] = True
    with pytest.raises(CancelledWhileCompiling):
        progress.compiling_began()
    progress.compiling_ended()
    assert not progress.is_compiling
    assert progress.cancelled


def test_an_interrupt_is_noted_and_a_second_one_raised():
    before = signal.getsignal(signal.SIGINT)  # a shell may have its background jobs ignore it
    with Interrupts() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_events_are_due_ten_times_a_second():
    now = [0.0]
    progress = Progress(Budget(), None, None, clock=lambda: now[0])
    sent = 0
    for i in range(1000):
        now[0] = i * 0.005
        if progress.is_event_due():
            progress.report(1.0, None, ())
            sent += 1
    assert 40 <= sent <= 51
    assert len(progress.events) == sent


@pytest.mark.parametrize("name", planner_names())
def test_every_planner_describes_itself(name):
    cls = planner_type(name)
    assert cls.name == name
    assert cls.summary
    assert issubclass(cls.settings_type, PlannerSettings)
    assert all(field.description for field in cls.settings_type.model_fields.values())
    make_planner(name)


def test_unknown_planners_and_settings_are_refused_in_one_line():
    with pytest.raises(InvalidInput, match="evolution, rank-order, megatron, random"):
        make_planner("oracle")
    with pytest.raises(InvalidInput, match=r"planner evolution: starts"):
        make_planner("evolution", {"starts": "lucky"})
    with pytest.raises(InvalidInput, match="unknown field"):
        make_planner("random", {"starts": "random"})


def test_planners_import_neither_numba_nor_torch():
    code = (
        "from hetplanner.planners.registry import make_planner, planner_names;"
        "[make_planner(n) for n in planner_names()]; import hetplanner.cost.estimate, hetplanner.cost.dtfm"
    )
    assert imported(code, "numba", "torch", "scipy", "panel") == []
