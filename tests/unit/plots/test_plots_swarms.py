"""Columns and plots of a swarm over a trace and of the square-cube law."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hetplanner.cost.square_cube import SquareCubePoint
from hetplanner.elastic.forecast.swarm_run import MoveAt, SwarmRun
from hetplanner.elastic.rebalancing.swarm_view import Move
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.rebalancing import Rebalancing
from hetplanner.plots import square_cube, swarm_throughput
from hetplanner.plots.data.swarms.swarms import policy_columns, square_cube_columns, trace_columns

RUN = SwarmRun(
    trace="made",
    settings=Rebalancing(),
    time_s_E=np.array([0.0, 1800.0, 1800.0, 2700.0, 7200.0]),
    throughput_E=np.array([4.0, 9.0, 2.0, 0.0, 0.0]),
    optimal_E=np.array([4.0, 4.0, 4.0, 0.0, 0.0]),
    loaded_optimal_E=np.array([4.0, 4.0, 4.0, 0.0, 0.0]),
    peers_E=np.array([8.0, 8.0, 8.0, 1.0, 1.0]),
    moves=(MoveAt(1800.0, Move("a", 1, 0)),),
)
POINTS = [
    SquareCubePoint(512, 12.5e6, 0.1, 0.4),
    SquareCubePoint(512, 125e6, 0.1, 0.04),
    SquareCubePoint(1024, 12.5e6, 0.4, 0.8),
    SquareCubePoint(1024, 125e6, 0.4, 0.08),
]


def test_intervals_hold_means_over_time():
    columns = trace_columns(RUN, intervals=2)
    assert columns["hours"] == [0.0, 1.0, 2.0]
    assert columns["throughput"] == pytest.approx([(4 * 1800 + 2 * 900) / 3600, 0.0, 0.0])
    assert columns["optimal"] == pytest.approx([3.0, 0.0, 0.0])
    assert columns["share"][0] == pytest.approx(2.5 / 3)
    assert math.isnan(columns["share"][1])
    assert columns["peers"] == pytest.approx([(8 * 2700 + 900) / 3600, 1.0, 1.0])


def test_intervals_keep_the_mean_of_the_whole():
    columns = trace_columns(RUN)
    assert np.mean(columns["throughput"][:-1]) == pytest.approx(RUN.mean_throughput)


def test_moves_and_policies_are_rows():
    columns = policy_columns({"ours": RUN})
    assert columns["moves"] == [1]
    assert columns["share"] == [pytest.approx(9000 / 10800)]
    assert columns["text"] == ["ours: 83.3%, 1 moves"]


def test_compute_is_one_line_and_every_network_another():
    lines = square_cube_columns(POINTS)
    assert list(lines) == ["compute", "transfer at 100 Mbit/s", "transfer at 1 Gbit/s"]
    assert lines["compute"] == {"hidden": [512, 1024], "seconds": [0.1, 0.4]}
    assert lines["transfer at 100 Mbit/s"]["utilisation"] == [0.25, 0.5]
    assert lines["transfer at 1 Gbit/s"]["utilisation"] == [1.0, 1.0]


def test_the_plots_show_a_curve_for_every_line():
    import holoviews as hv

    other = replace(RUN, settings=Rebalancing(policy="queue"))
    found = swarm_throughput({"ours": RUN, "paper": other})
    assert [layer.label for layer in found] == ["optimal", "ours: 83.3%, 1 moves", "paper: 83.3%, 1 moves"]
    hv.render(found)
    hv.render(swarm_throughput(RUN))
    law = square_cube(POINTS)
    assert {layer.label for layer in law} == {"compute", "transfer at 100 Mbit/s", "transfer at 1 Gbit/s"}
    hv.render(law)


def test_what_cannot_be_drawn_together_is_refused():
    with pytest.raises(InvalidInput, match="got 2 traces"):
        swarm_throughput({"a": RUN, "b": replace(RUN, trace="other")})
    with pytest.raises(InvalidInput, match="at least one"):
        swarm_throughput({})
    with pytest.raises(InvalidInput, match="at least one"):
        square_cube([])
