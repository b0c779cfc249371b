"""The documented WireGuard recipe between two hosts: the run goes through it, and the wire carries nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hetplanner.plan.files.plan_files import save_plan
from hetplanner.runs.run import open_run
from tests.support.hosts import packet_counts
from tests.support.hosts.host_bed import HEAD, PORT, HostBed, HostSpec
from tests.support.hosts.host_tools import program
from tests.support.plans.factories import chain_plan
from tests.support.processes.patience import HANG_S, until
from tests.support.repository.documentation import blocks

pytestmark = pytest.mark.distributed

HETPLANNER = str(Path(sys.executable).with_name("hetplanner"))
VPN = {"a": "10.99.0.1", "b": "10.99.0.2"}
OTHER = {"a": "b", "b": "a"}
BLOCK = "[Interface]"
ETC = "/etc/wireguard/hetplanner"


@pytest.fixture
def bed(make_bed):
    made = make_bed([HostSpec(name) for name in VPN])
    for name in ("wg", "wg-quick", "wireguard-go"):
        program(name)
    yield made
    for name in VPN:
        made.run(name, [program("wg-quick"), "down", f"{at(made, name)}.conf"])


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; it must have gone well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def at(bed: HostBed, name: str) -> str:
    """Where a host keeps what the docs have under /etc/wireguard; wg-quick names an interface after the file."""
    return str(bed.folder / name / f"wg-{bed.prefix[-4:]}-{name}")


def encrypt(bed: HostBed) -> None:
    """Does on both hosts what the docs say."""
    (make_key,) = (block for block in blocks("sh") if "wg genkey" in block)
    (template,) = (block for block in blocks("ini") if BLOCK in block)
    keys = {name: said(bed.run(name, ["sh", "-ec", make_key.replace(ETC, at(bed, name))])) for name in VPN}
    for name, other in OTHER.items():
        text = template.replace(ETC, at(bed, name)).replace(VPN["a"], "THIS").replace(VPN["b"], VPN[other])
        text = text.replace("THIS", VPN[name]).replace("PUBLIC_KEY_OF_THE_OTHER", keys[other])
        Path(f"{at(bed, name)}.conf").write_text(text.replace("ADDRESS_OF_THE_OTHER", bed.address(other)))
        said(bed.run(name, [program("wg-quick"), "up", f"{at(bed, name)}.conf"]))
    until(lambda: bed.run("a", ["ping", "-c1", "-W1", VPN["b"]]).returncode == 0, "b does not answer inside WireGuard")


def test_a_run_through_wireguard_sends_nothing_past_it(bed, tmp_path):
    encrypt(bed)
    plan, hosts = tmp_path / "plan.json", tmp_path / "hosts.toml"
    save_plan(chain_plan(shares=(2,), cuts=(4,), cluster=bed.cluster()), plan)
    lines = ['format = "hetplanner/hosts@1"', f'ssh_config = "{bed.ssh_config}"', "encrypted = true"]
    lines += [f'[hosts.{name}]\naddress = "{address}"' for name, address in VPN.items()]
    hosts.write_text("\n".join(lines) + "\n")
    sniffer = bed.popen(
        "a",
        [sys.executable, packet_counts.__file__, PORT, str(HANG_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    until(lambda: sniffer.stdout.readline() == "listening\n", "nobody counts packets")

    argv = [HETPLANNER, "train", str(plan), "--launcher", "ssh", "--hosts", str(hosts), "--steps", "5"]
    done = bed.run(HEAD, argv, env={"HETPLANNER_HOME": str(tmp_path / "home")}, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    run = open_run("last", tmp_path / "home")
    run.read_all()
    assert (run.status().state, len(run.steps())) == ("finished", 5)
    assert "encrypted" not in done.stdout + done.stderr

    counts = json.loads(sniffer.communicate("\n")[0])
    to_b = {what.split()[0]: size for what, size in counts.items() if what.endswith(f" {bed.address('b')}")}
    assert to_b.pop("udp") > 100_000, counts
    assert not to_b, counts  # the ranks' own connections would be TCP
    assert f"tcp {bed.address(HEAD)}" in counts  # ssh from the user's machine is seen, so TCP would be
