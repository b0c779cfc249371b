"""`hetplanner cluster probe` over sshd, between hosts whose links the kernel limits."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetplanner.cluster.formats.cluster_files import load_cluster, save_cluster
from tests.support.hosts.host_bed import HEAD, HostBed, HostSpec
from tests.support.processes.patience import HANG_S, stretched, until

pytestmark = pytest.mark.distributed

FRAMES = 1448 / 1514
"""Of a limited link's bits, which tc counts in whole frames, so many are a TCP connection's own."""
OFF = 0.05
TRIES = 4


class Lab:
    """A bed, its cluster file and its hosts file."""

    def __init__(self, bed: HostBed, folder: Path) -> None:
        self.bed, self.out = bed, folder / "measured.json"
        self.cluster_file, self.hosts_file = folder / "cluster.json", folder / "hosts.toml"
        save_cluster(bed.cluster(), self.cluster_file)
        lines = ['format = "hetplanner/hosts@1"', f"ssh_config = {json.dumps(str(bed.ssh_config))}"]
        for name in bed.hosts:
            lines += [f"[hosts.{name}]", f'address = "{bed.address(name)}"']
        self.hosts_file.write_text("\n".join(lines) + "\n")

    def argv(self, *words: str) -> list[str]:
        files = [str(self.cluster_file), "--hosts", str(self.hosts_file), "-o", str(self.out)]
        return [sys.executable, "-m", "hetplanner.cli", "cluster", "probe", *files, *words]

    def probe(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.bed.run(HEAD, self.argv(*words), timeout=HANG_S)

    def is_empty(self) -> bool:
        """Whether no process of ours is left on any host."""
        return not any(self.bed.processes(name) for name in self.bed.hosts)


def mbits(found: dict[str, Any]) -> dict[str, float]:
    return {f"{x['from_host']}{x['to_host']}": 8e-6 * x["bytes_per_s"] / FRAMES for x in found["links"]}


def test_rates_shared_cards_and_shared_ways_are_found(make_bed: Callable[..., HostBed], tmp_path: Path) -> None:
    hosts = [HostSpec("a", rate_bits=50e6), HostSpec("b", rate_bits=20e6)]
    far = [HostSpec(name, rate_bits=400e6, site="there") for name in "cd"]
    lab = Lab(make_bed([*hosts, *far], site_rates={("here", "there"): 100e6}), tmp_path)
    rates = {"ab": 50.0, "ba": 20.0, "cd": 400.0, "dc": 400.0, "ac": 50.0, "ca": 100.0, "bd": 20.0, "db": 100.0}
    for _ in range(TRIES):  # a busy machine sends less
        done = lab.probe("--only", "links", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if mbits(found) == pytest.approx(rates, rel=OFF):
            break
    assert mbits(found) == pytest.approx(rates, rel=stretched(OFF))
    said = "\n".join(found["findings"])
    assert "a: 2 connections at once carry" in said
    assert "site there: 2 connections at once carry" in said
    measured = load_cluster(lab.out)
    assert 8e-6 * measured.host_of("a-0").nic_out / FRAMES == pytest.approx(50.0, rel=stretched(0.1))
    assert 8e-6 * measured.link("c-0", "a-0").bandwidth / FRAMES == pytest.approx(100.0, rel=stretched(OFF))
    assert {link.source for link in measured.site_links} == {"measured"}
    until(lab.is_empty, "a host's processes end with the probe")


def test_an_interrupted_probe_keeps_what_it_has_and_goes_on(make_bed: Callable[..., HostBed], tmp_path: Path) -> None:
    lab = Lab(make_bed([HostSpec(name, rate_bits=50e6) for name in "abcd"]), tmp_path)
    kept = tmp_path / "measured.probe.json"

    def num_links() -> int:
        return len(json.loads(kept.read_text())["links"]) if kept.exists() else 0

    process = lab.bed.popen(HEAD, lab.argv("--only", "links"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: num_links() > 0, "the first round is kept")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=HANG_S)[1]
    assert process.returncode == 130, said
    assert "with --resume continues" in said
    first = json.loads(kept.read_text())["links"]
    assert 0 < len(first) < 12
    assert load_cluster(lab.out).name == "test-bed"
    done = lab.probe("--only", "links", "--resume", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["links"]) == 12
    assert found["links"][: len(first)] == first
    until(lab.is_empty, "a host's processes end with the probe")


def test_devices_are_measured_all_of_a_host_at_once(make_bed: Callable[..., HostBed], tmp_path: Path) -> None:
    lab = Lab(make_bed([HostSpec("a")]), tmp_path)
    save_cluster(lab.bed.cluster(2), lab.cluster_file)
    done = lab.probe("--only", "devices")
    assert done.returncode == 0, done.stderr
    assert "a-1 (cpu): float32 " in done.stdout
    first, second = load_cluster(lab.out).devices
    assert first.peak
    assert second.peak
    assert first.peak["float32"] > 1e8
    assert first.efficiency is not None
    assert 0 < first.efficiency <= 1


def test_hosts_that_cannot_be_measured_are_told_at_once(make_bed: Callable[..., HostBed], tmp_path: Path) -> None:
    lab = Lab(make_bed([HostSpec(name) for name in "abc"]), tmp_path)
    text = lab.hosts_file.read_text().replace(f'address = "{lab.bed.address("b")}"', 'address = "10.77.0.99"')
    lab.hosts_file.write_text(text)
    lab.bed.kill_host("c")
    began_s = time.monotonic()
    done = lab.probe()
    assert done.returncode == 2, done.stdout
    assert "[b] its address 10.77.0.99 is not assigned to this host" in done.stderr
    assert "[c] cannot be reached" in done.stderr
    assert time.monotonic() - began_s < HANG_S
    assert not lab.out.exists()
    until(lab.is_empty, "a host's processes end with the probe")
