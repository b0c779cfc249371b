"""Ranks measure what the kernel lets their links carry, before the first step, whatever the cluster file says."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.measured import LINKS_FILE, MEASURED_CLUSTER_FILE, Measured, differences, load_measured
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import ranks_by_host
from hetplanner.plan.train import TrainConfig
from tests.benchmarks.prediction.bench_hosts import start, write_run
from tests.support.hosts.host_bed import PORT, HostBed, HostSpec
from tests.support.hosts.shaping import limit_connections
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, stretched

pytestmark = pytest.mark.distributed

FRAMES = 1448 / 1514
"""Of a limited link's bits, which tc counts in whole frames, so many are a TCP connection's own."""
OFF = 0.05
TRIES = 4


def trained(bed: HostBed, plan: Plan, **settings: int) -> Path:
    """Two steps of a plan; the folder of rank 0's host."""
    folders = {host: bed.home(host) / "run" for host in ranks_by_host(plan)}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        write_run(plan, TrainConfig(steps=2, **settings), folder)
    codes = [process.wait(HANG_S) for process in start(bed, plan, folders)]
    assert codes == [0] * len(codes), [path.read_text()[-1000:] for f in folders.values() for path in f.glob("*.txt")]
    return next(iter(folders.values()))


def trained_until(bed: HostBed, plan: Plan, rates: dict[str, float]) -> tuple[Path, Measured]:
    """Trains until the links' rates are found, at most TRIES times: a busy machine sends less."""
    for _ in range(TRIES):
        folder = trained(bed, plan)
        measured = load_measured(folder / LINKS_FILE)
        if mbits(measured) == pytest.approx(rates, rel=OFF):
            break
    return folder, measured


def mbits(measured: Measured) -> dict[str, float]:
    return {f"{x.from_host}{x.to_host}": 8e-6 * x.bandwidth_bytes_per_s / FRAMES for x in measured.links}


def losses(telemetry: Path) -> list[float]:
    """Of all steps, as a rank of the last stage has summed them."""
    records = map(json.loads, telemetry.read_text().splitlines())
    return [record["loss_sum"] for record in records if record["type"] == "step"]


def test_links_are_measured_and_a_wrong_cluster_file_is_told_and_corrected(make_bed: Callable[..., HostBed]) -> None:
    bed = make_bed([HostSpec("a", rate_bits=50e6), HostSpec("b", rate_bits=20e6), HostSpec("c", rate_bits=100e6)])
    right = bed.cluster()
    wrong = right.replace(
        hosts=tuple(host.replace(nic_out=10 * host.nic_out) for host in right.hosts),
        site_links=tuple(link.replace(bandwidth=10 * link.bandwidth) for link in right.site_links),
    )
    # The first stage and the last share an embedding, so that a and c talk as well.
    rates = {"ab": 50, "ac": 50, "ba": 20, "bc": 20, "ca": 100, "cb": 100}
    folder, measured = trained_until(bed, chain_plan([6], [2, 4], cluster=wrong), rates)
    found = mbits(measured)
    assert found == pytest.approx(rates, rel=stretched(OFF))
    told = differences(wrong, measured)
    assert all(any(text.startswith(f"{x[0]} → {x[1]}: bandwidth") for text in told) for x in found)
    shared = {nic.host: nic for nic in measured.nics}["b"]  # it sends to both others
    assert shared.out_is_shared
    assert 8e-6 * shared.out_bytes_per_s / FRAMES == pytest.approx(20, rel=stretched(OFF))
    better = load_cluster(folder / MEASURED_CLUSTER_FILE)
    assert differences(better, measured) == ()
    prediction = json.loads((folder / "prediction.json").read_text())
    assert prediction["cluster_file_step_s"] < prediction["step_s"]


def test_two_ranks_behind_one_nic_are_found_to_share_it(make_bed: Callable[..., HostBed]) -> None:
    bed = make_bed([HostSpec("a", rate_bits=50e6), HostSpec("b", rate_bits=30e6)])
    cluster = bed.cluster(2).replace(hosts=tuple(host.replace(nic_out=None) for host in bed.cluster(2).hosts))
    _, measured = trained_until(bed, chain_plan([4, 4], [3], cluster=cluster), {"ab": 50, "ba": 30})
    assert mbits(measured) == pytest.approx({"ab": 50, "ba": 30}, rel=stretched(OFF))
    nics = {nic.host: nic for nic in measured.nics}
    assert [nics[host].out_is_shared for host in "ab"] == [True, True]
    together = [8e-6 * nics[host].out_bytes_per_s / FRAMES for host in "ab"]
    assert together == pytest.approx([50, 30], rel=stretched(OFF))
    assert not any(nic.in_is_shared for nic in measured.nics)  # what comes in is what the other can send


def test_several_connections_fill_a_path_that_one_does_not(make_bed: Callable[..., HostBed]) -> None:
    bed = make_bed([HostSpec("a"), HostSpec("b")])
    for host in bed.hosts:
        limit_connections(bed.namespace(host), PORT, 20e6)
    plan, seen = chain_plan([4], [3], cluster=bed.cluster()), {}
    for connections in (1, 4):
        folder = trained(bed, plan, connections=connections)
        seen[connections] = mbits(load_measured(folder / LINKS_FILE)), losses(bed.home("b") / "run" / "rank-1.jsonl")
    (one, loss), (four, same) = seen[1], seen[4]
    assert one == pytest.approx({"ab": 20, "ba": 20}, rel=stretched(2 * OFF))
    assert all(four[way] > 1.7 * one[way] for way in one), (one, four)
    assert len(loss) == 2
    assert same == loss


def test_a_host_that_says_it_is_another_is_refused_by_name(make_bed: Callable[..., HostBed]) -> None:
    bed = make_bed([HostSpec("a"), HostSpec("b")])
    plan = chain_plan([4], [3], cluster=bed.cluster())
    folder = bed.home("b") / "run"
    write_run(plan, TrainConfig(steps=1), folder)
    argv = ["-m", "hetplanner.runtime.worker", str(folder / "plan.json")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=hetplanner", "--nnodes=1"]
    torchrun += [f"--rdzv-endpoint={bed.address('b')}:29501", "--nproc-per-node=1", "--log-dir=/dev/null", *argv]
    done = bed.run("b", torchrun, env={"HETPLANNER_HOST": "c"})
    assert done.returncode
    assert "HETPLANNER_HOST: 'c' is no host of the plan (a, b)" in done.stderr
