"""Where ops, edges and stages of an OP-DAG are drawn."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetplanner.plots.data.search.dags import DagLayout
from hetplanner.plots.theme import OP_COLOURS
from hetplanner.workload.model import Op, OpKind
from tests.support.models.dags import captured, cut_plan, random_dag, residual_network
from tests.support.plans.factories import small_cluster, tiny_workload


def chain(*reads: tuple[str, ...]) -> list[Op]:
    return [Op(name="abcdefgh"[i], kind="function", inputs=r, output_bytes=8) for i, r in enumerate(reads)]


def test_branches_have_lanes_and_join_above() -> None:
    # a forks into b-c and d-e, which f joins.
    layout = DagLayout(captured(chain((), ("a",), ("b",), ("a",), ("d",), ("c", "e"), ("f",))))
    assert layout.lanes == [0, 0, 0, 1, 1, 0, 0]
    assert layout.skips == [(0, 3), (2, 5)]


def test_rows_turn_and_neighbours_stay_near() -> None:
    layout = DagLayout(residual_network(33))
    rows = [layout.place(i)[1] for i in range(len(layout.ops))]
    assert len(set(rows)) == layout.rows > 5
    for i in range(1, len(layout.ops)):
        (x0, y0), (x1, y1) = layout.place(i - 1), layout.place(i)
        assert (abs(x1 - x0), y1 - y0) in [(1.0, 0.0), (0.0, pytest.approx(-layout.row_height))]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 90))
def test_every_op_and_edge_is_drawn_once(seed: int, num_ops: int) -> None:
    workload = random_dag(seed, num_ops)
    layout = DagLayout(workload)
    assert len({layout.place(i) for i in range(num_ops)}) == num_ops
    near, far = layout.edge_columns(skips=False), layout.edge_columns(skips=True)
    drawn = {*zip(near["source"], near["target"], strict=True), *zip(far["source"], far["target"], strict=True)}
    assert drawn == {(name, op.name) for op in workload.graph.ops for name in op.inputs}
    index = {op.name: i for i, op in enumerate(workload.graph.ops)}
    for columns in (near, far):
        for xs, ys, source, target in zip(*(columns[c] for c in ("xs", "ys", "source", "target")), strict=True):
            assert (xs[0], ys[0]) == pytest.approx(layout.place(index[source]))
            assert (xs[-1], ys[-1]) == pytest.approx(layout.place(index[target]))
    assert len(layout.tied_columns()["xs"]) == sum(len(m) - 1 for m in workload.graph.tied_groups.values())


def test_a_stage_covers_its_ops_and_says_what_it_sends_on() -> None:
    workload = residual_network(20)
    plan = cut_plan(workload, [40, 75], [1, 2, 1], small_cluster(4))
    layout = DagLayout(workload)
    columns = layout.stage_columns(plan)
    for i in range(len(workload.graph.ops)):
        x, y = layout.place(i)
        (stage,) = {
            columns["stage"][k]
            for k in range(len(columns["x0"]))
            if columns["x0"][k] < x < columns["x1"][k] and columns["y0"][k] < y < columns["y1"][k]
        }
        assert int(stage) == plan.stage_of_op[i]
    assert [text for text in columns["label"] if text] == ["stage 0", "stage 1", "stage 2"]
    assert columns["devices"][-1] == "d3"
    assert columns["message"][-1] == "–"


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert set(OP_COLOURS) == set(get_args(OpKind))
    assert len(set(OP_COLOURS.values())) == len(OP_COLOURS)


def test_stretches_are_named_by_layer_or_module() -> None:
    names = [text for text in DagLayout(tiny_workload(layers=2)).group_columns()["text"] if text]
    assert names[1:] == ["layer 0", "layer 1", "norm", "head", "loss"]
    assert "b3" in DagLayout(residual_network(8)).group_columns()["text"]
