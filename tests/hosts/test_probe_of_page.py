"""Measuring hosts as the Cluster page does it, over sshd: cancelled in every phase, gone on with, nothing left."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_probe_of_hosts import FRAMES, Lab

from hetplanner.ui.jobs.probe_jobs import ProbeJob, ProbeJobs, ProbeRequest
from tests.support.hosts.host_bed import HEAD, HostBed, HostSpec
from tests.support.processes.patience import until

pytestmark = pytest.mark.distributed


def page_of(lab: Lab, home: Path) -> ProbeJobs:
    home.mkdir(mode=0o700)
    (home / "agent.toml").write_text(f'[hosts]\nlab = "{lab.hosts_file}"\n')
    (home / "agent.toml").chmod(0o600)
    lab.hosts_file.chmod(0o600)
    return ProbeJobs(home, lab.bed.command(HEAD, [sys.executable, "-m", "hetplanner.ui.jobs.probe_worker"]))


def ended(job: ProbeJob) -> Callable[[], bool]:
    return lambda: job.ended


def test_a_probe_is_cancelled_goes_on_and_leaves_no_process(make_bed: Callable[..., HostBed], tmp_path: Path) -> None:
    lab = Lab(make_bed([HostSpec(name, rate_bits=50e6) for name in "abc"]), tmp_path)
    jobs = page_of(lab, tmp_path / "home")
    request = ProbeRequest(lab.bed.cluster(), "lab", only="links")
    first = jobs.start(request)
    until(lambda: not lab.is_empty(), "a host is connected")
    jobs.stop()
    until(ended(first))
    assert first.state == "stopped"
    until(lab.is_empty, "a host's processes end with the probe")
    second = jobs.start(request)
    until(lambda: second.ended or (second.record is not None and second.record.links))
    jobs.stop()
    until(ended(second))
    assert second.state == "stopped", second.message
    until(lab.is_empty, "a host's processes end with the probe")
    kept = jobs.kept(request.cluster, "lab")
    assert kept is not None
    assert kept.links
    third = jobs.start(request)
    until(ended(third))
    assert third.state == "done", third.message
    assert third.record is not None
    assert third.record.links[: len(kept.links)] == kept.links
    assert len(third.record.links) == 6
    assert all(0 < link.bytes_per_s < 1.1 * 50e6 / 8 * FRAMES for link in third.record.links)
    until(lab.is_empty, "a host's processes end with the probe")


def test_a_host_that_is_gone_is_told_and_its_measurements_are_kept(
    make_bed: Callable[..., HostBed], tmp_path: Path
) -> None:
    lab = Lab(make_bed([HostSpec(name, rate_bits=50e6) for name in "abc"]), tmp_path)
    jobs = page_of(lab, tmp_path / "home")
    request = ProbeRequest(lab.bed.cluster(), "lab", only="links")
    job = jobs.start(request)
    until(lambda: job.ended or (job.record is not None and job.record.links))
    lab.bed.kill_host("c")
    until(ended(job))
    assert job.state == "failed"
    assert "host " in job.message
    assert jobs.kept(request.cluster, "lab") is not None
    again = jobs.start(request)
    until(ended(again))
    assert "[c] cannot be reached" in again.message
