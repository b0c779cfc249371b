"""The published DT-FM runs: their runtime simulated, two numbers fitted, the rest foretold."""

from pathlib import Path

import numpy as np
import pytest

from hetplanner.calibration.dtfm_rows import (
    EFFICIENCY_ROW,
    OVERLAP_ROW,
    deployments_of,
    fit_published,
    published_cluster,
    published_runs,
    random_placement_PS,
)
from hetplanner.calibration.dtfm_runtime import (
    BACKWARD,
    MESSAGE_S,
    MICRO_BATCHES_PER_FLUSH,
    Deployment,
    iteration_seconds,
    megatron_seconds,
)
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cost.dtfm import score_dtfm

SAMPLES = Path(__file__).parents[3] / "sample_clusters"


@pytest.fixture(scope="module")
def fit():
    return fit_published()


def rows(system: str):
    return [row for row in published_runs().rows if row.system == system]


def test_two_fitted_rows_foretell_the_others(fit):
    fitted = {row.use: row for row in fit.rows if row.use in ("efficiency", "overlap")}
    assert all(abs(row.error) < 0.005 for row in fitted.values())
    assert sum(row.use == "predicted" for row in fit.rows) == 10
    assert fit.mean_error <= 0.12
    assert fit.wrong_orders() == []
    assert 0.3 < fit.efficiency < 0.6


def test_every_choice_of_the_fitted_rows_is_told(fit):
    assert len(fit.choices) == 66
    ours = {row.key: row.label for row in published_runs().rows}
    pair = (ours[EFFICIENCY_ROW], ours[OVERLAP_ROW])
    own = next(choice for choice in fit.choices if choice.rows == pair)
    assert own.mean_error == pytest.approx(fit.mean_error, abs=2e-3)
    # One row of case 1's scheduled runs for compute, any other row of case 3 for overlap: none is a lucky pick.
    alike = [c for c in fit.choices if c.rows[0].startswith("case 1, dtfm,") and c.rows[1].startswith("case 3")]
    assert len(alike) == 18
    assert max(c.mean_error for c in alike) <= 0.15


def test_without_the_right_overlap_the_rows_are_missed(fit):
    ours = [row for row in published_runs().rows if row.system != "megatron"]

    def error(overlap: float) -> float:
        found = [
            np.mean([iteration_seconds(d, r.batch, fit.efficiency, overlap) for d in deployments_of(r)]) / r.seconds - 1
            for r in ours
        ]
        return float(np.mean(np.abs(found)))

    assert error(fit.overlap) < 0.5 * error(0.0)


@pytest.mark.parametrize(("case", "sample"), [("1", "dtfm_1_datacenter"), ("3", "dtfm_3_universities")])
def test_published_clusters_are_the_sample_clusters(case, sample):
    own, other = published_cluster(case), load_cluster(SAMPLES / f"{sample}.json")
    np.testing.assert_array_equal(own.latency_s_DD, other.latency_s_DD)
    np.testing.assert_allclose(own.bandwidth_bytes_per_s_DD, other.bandwidth_bytes_per_s_DD)
    np.testing.assert_array_equal(own.host_index_D, other.host_index_D)
    assert [h.nic_out for h in own.hosts] == [h.nic_out for h in other.hosts]


@pytest.mark.parametrize(
    ("case", "sample", "optimum"), [("1", "1_datacenter", 3.43980), ("3", "3_universities", 16.08684)]
)
def test_the_scheduled_placement_is_the_optimum_of_their_objective(case, sample, optimum):
    cluster = load_cluster(SAMPLES / f"dtfm_{sample}.json")
    row = next(r for r in rows("dtfm") if r.case == case)
    placement_SR = deployments_of(row)[0].placement_PS.T
    cost = score_dtfm(placement_SR, cluster.published_delay_ms_DD, cluster.published_bandwidth_gbps_DD)
    assert cost.total_s == pytest.approx(optimum, abs=1e-4)


def test_random_placements_are_the_published_ones():
    placement = random_placement_PS(2022)
    ranks = np.arange(1, 64)
    np.random.RandomState(2022).shuffle(ranks)
    node_of_rank_9 = 1 + ranks.tolist().index(9)
    assert placement[1, 1] == node_of_rank_9
    assert placement[0, 0] == 0
    assert sorted(placement.ravel().tolist()) == list(range(64))


def one_region(stages: int) -> Deployment:
    """One pipeline over as many hosts as stages, 1 ms and 5 Gbit/s apart."""
    return Deployment(published_cluster("3"), np.arange(stages)[None, :], 8)


def test_a_pipeline_of_one_stage_only_computes():
    alone = one_region(1)
    forward_s = alone.ideal_forward_s / 0.5
    expected = MICRO_BATCHES_PER_FLUSH * (1 + BACKWARD) * forward_s
    assert iteration_seconds(alone, MICRO_BATCHES_PER_FLUSH, 0.5, 0.3) == pytest.approx(expected)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
def test_two_stages_by_hand(overlap):
    # Compute is far longer than the wire: the first stage computes on, for every message the sender is held up until
    # its buffers hold the rest, which never delays compute; the last message arrives one wire and latency later.
    pair = one_region(2)
    forward_s = pair.ideal_forward_s / 0.01
    wire_s = float(pair.wire_s_DD[0, 1])
    hop_s = wire_s + 0.001
    n = MICRO_BATCHES_PER_FLUSH
    phases = (n + 1) * (1 + BACKWARD) * forward_s + 2 * hop_s
    expected = phases + pair.barrier_s + pair.reduce_s_S[0]
    assert wire_s == pytest.approx(2**23 / 0.625e9 + MESSAGE_S)
    assert iteration_seconds(pair, n, 0.01, overlap) == pytest.approx(expected, rel=1e-9)


def test_slow_wires_set_the_pace_when_buffers_hold_a_message():
    pair = one_region(2)
    n, wire_s = MICRO_BATCHES_PER_FLUSH, float(pair.wire_s_DD[0, 1])
    tiny = pair.ideal_forward_s / 1e6
    phases = 2 * (n * wire_s + 0.001)
    assert iteration_seconds(pair, n, 1e6, 1.0) == pytest.approx(phases + pair.barrier_s, rel=1e-3, abs=10 * tiny)


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_the_latency_of_a_long_link_is_paid_once_a_phase(overlap):
    near = published_cluster("3")
    far = near.replace(site_links=tuple(link.replace(latency=1.0) for link in near.site_links))
    n, tiny = MICRO_BATCHES_PER_FLUSH, 1e6
    pairs = [Deployment(cluster, np.arange(2)[None, :], 8) for cluster in (near, far)]
    seconds = [float(iteration_seconds(pair, n, tiny, overlap)) - pair.barrier_s for pair in pairs]
    assert seconds[1] - seconds[0] == pytest.approx(2 * 0.999, rel=1e-3)


def test_more_overlap_and_more_efficiency_never_take_longer():
    deployment = deployments_of(rows("dtfm-random")[3])[0]
    efficiency, overlap = np.linspace(0.3, 0.6, 4)[:, None], np.linspace(0.0, 1.0, 6)[None, :]
    seconds = iteration_seconds(deployment, 1024, efficiency, overlap)
    assert seconds.shape == (4, 6)
    assert (np.diff(seconds, axis=0) < 0).all()
    assert (np.diff(seconds, axis=1) <= 1e-9).all()


def test_megatron_waits_for_every_exchange():
    pair = one_region(2)
    hop_s = float(pair.wire_s_DD[0, 1]) + 0.001
    compute_s = (1 + BACKWARD) * pair.ideal_forward_s / 0.5
    assert megatron_seconds(pair, 10, 0.5) == pytest.approx(10 * (compute_s + hop_s) + compute_s + 2 * hop_s)
