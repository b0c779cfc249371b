"""The test bed itself: hosts reach one another as fast as they were told, and nothing is left of them."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import host_tools, netns
from tests.support.hosts.host_bed import HostBed, HostSpec
from tests.support.hosts.measured import iperf_rate, of_frames, stream_rates
from tests.support.hosts.netns import BedError
from tests.support.processes.patience import stretched, until

pytestmark = pytest.mark.distributed

TOLERANCE = 0.05
# A busy machine sends less than a link takes, for seconds.
TRIES = 5
THREE = [HostSpec("a", rate_bits=20e6), HostSpec("b", rate_bits=40e6), HostSpec("c")]
TWO_SITES = [HostSpec("a", site="east"), HostSpec("b", site="west"), HostSpec("c", rate_bits=10e6, site="west")]
STUBBORN = """
import os, signal
os.fork()
if os.fork() == 0:
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""
BED_OF_ANOTHER = """
import time
from tests.support.hosts.host_bed import HostBed, HostSpec
bed = HostBed([HostSpec("a")]).__enter__()
bed.popen("a", ["sleep", "1000"])
print(bed.prefix, flush=True)
time.sleep(1000)
"""


def pings(bed: HostBed, a: str, b: str) -> bool:
    return bed.run(a, ["ping", "-c1", "-W2", bed.address(b)]).returncode == 0


def let_in(bed: HostBed, name: str) -> bool:
    return bed.ssh(name, "true").returncode == 0


def machines_network() -> list[str]:
    """What the machine's own network consists of."""
    asked = (["ip", "-br", "addr"], ["ip", "route"], ["ip", "-br", "link"], ["tc", "qdisc"], ["bridge", "link"])
    return [subprocess.run(argv, capture_output=True, text=True, check=True).stdout for argv in asked]


def has_rates(expected_bits: list[float], measure: Callable[[], list[float]]) -> None:
    """Measures payload until frames of it have the expected bits/s, at most TRIES times."""
    for _ in range(TRIES):
        found = [of_frames(rate) for rate in measure()]
        if found == pytest.approx(expected_bits, rel=TOLERANCE):
            return
    assert found == pytest.approx(expected_bits, rel=stretched(TOLERANCE))


def rate_of(bed: HostBed, sender: str, receiver: str) -> Callable[[], list[float]]:
    """Measures one stream."""
    return lambda: [stream_rates(bed, [sender], receiver)[sender]]


def left_of(prefix: str) -> list[str]:
    """Namespaces, folders and processes of a bed."""
    folders = [str(path) for path in Path(tempfile.gettempdir()).glob(f"{prefix}*")]
    running = [str(p) for p in psutil.process_iter(["cmdline"]) if prefix in " ".join(p.info["cmdline"] or [])]
    return netns.of_prefix(prefix) + folders + running


def fail_in_a_bed(error: type[BaseException], prefixes: list[str]) -> None:
    with HostBed(TWO_SITES) as bed:
        prefixes.append(bed.prefix)
        bed.popen("a", ["sleep", "1000"])
        raise error


def bed_of_another() -> tuple[subprocess.Popen[str], str]:
    """A test process of its own that has a bed, and that bed's prefix."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", BED_OF_ANOTHER], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("hosts", [THREE, TWO_SITES], ids=["bridged", "routed"])
def test_everybody_reaches_everybody(make_bed, hosts):
    bed = make_bed(hosts)
    names = ["head", *bed.hosts]
    assert all(pings(bed, a, b) for a in names for b in names)
    assert stream_rates(bed, ["a"], "b", 1.0)["a"] > 0


@pytest.mark.parametrize("rate_bits", [20e6, 200e6])
def test_a_stream_is_as_fast_as_the_host_was_told(make_bed, rate_bits):
    bed = make_bed([HostSpec("a", rate_bits=rate_bits), HostSpec("b")])
    has_rates([rate_bits], rate_of(bed, "a", "b"))


def test_a_stream_is_as_fast_as_iperf3_finds_the_link(make_bed):
    bed = make_bed([HostSpec("a", rate_bits=50e6), HostSpec("b")])
    has_rates([50e6], rate_of(bed, "a", "b"))
    has_rates([50e6], lambda: [iperf_rate(bed, "a", "b")])


def test_each_of_two_senders_keeps_its_own_limit(make_bed):
    bed = make_bed(THREE)
    has_rates([20e6, 40e6], lambda: list(stream_rates(bed, ["a", "b"], "c").values()))


def test_what_enters_a_host_is_limited_for_all_senders_together(make_bed):
    bed = make_bed([HostSpec("a"), HostSpec("b"), HostSpec("c", rate_in_bits=30e6)])
    has_rates([30e6], lambda: [sum(stream_rates(bed, ["a", "b"], "c").values())])


def test_sites_share_one_link_with_a_rate_for_each_way(make_bed):
    hosts = [HostSpec("a", site="east"), HostSpec("b", site="east"), HostSpec("c", site="west")]
    bed = make_bed(hosts, site_rates={("east", "west"): 30e6, ("west", "east"): 15e6})
    has_rates([30e6], lambda: [sum(stream_rates(bed, ["a", "b"], "c").values())])
    has_rates([15e6], rate_of(bed, "c", "a"))


def test_a_limit_can_change(make_bed):
    bed = make_bed([HostSpec("a", rate_bits=100e6), HostSpec("b")])
    bed.set_rate("a", 10e6)
    has_rates([10e6], rate_of(bed, "a", "b"))


@pytest.mark.parametrize("hosts", [THREE, TWO_SITES], ids=["bridged", "routed"])
def test_the_machines_own_network_stays_as_it_is(make_bed, hosts):
    before = machines_network()
    bed = make_bed(hosts)
    assert pings(bed, "a", "b")
    assert machines_network() == before
    assert subprocess.run(["ping", "-c1", "-W1", bed.address("a")], capture_output=True).returncode != 0
    bed.close()
    assert machines_network() == before


@pytest.mark.parametrize("hosts", [THREE, TWO_SITES], ids=["bridged", "routed"])
def test_head_reaches_every_host_by_ssh(make_bed, hosts):
    bed = make_bed(hosts)
    for name in bed.hosts:
        done = bed.ssh(name, "echo $SSH_CONNECTION; echo $HOME; python3 -c 'import hetplanner'")
        assert done.returncode == 0, done.stderr
        connection, home = done.stdout.splitlines()
        assert connection.split()[2] == bed.address(name)
        assert Path(home) == bed.home(name)


def test_a_server_takes_the_beds_key_alone_and_the_client_only_hosts_it_knows(make_bed):
    bed = make_bed([HostSpec("a"), HostSpec("b")])
    other = bed.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    by_name, own = bed.ssh_config.read_text(), str(bed.folder / "key")
    bed.ssh_config.write_text(by_name.replace(f"IdentityFile {own}", f"IdentityFile {other}"))
    assert "Permission denied (publickey)" in bed.ssh("b", "true").stderr
    bed.ssh_config.write_text(by_name)
    known = bed.folder / "known_hosts"
    known.write_text(known.read_text().replace(bed.address("b"), "10.77.0.99"))
    assert "Host key verification failed" in bed.ssh("b", "true").stderr


def test_a_server_listens_at_its_hosts_address_alone(make_bed):
    bed = make_bed([HostSpec("a")])
    ports = bed.run("a", ["ss", "-Hltn"]).stdout.split("\n")
    assert [line.split()[3] for line in ports if line] == [f"{bed.address('a')}:22"]


def test_a_host_that_is_cut_off_comes_back(make_bed):
    bed = make_bed([HostSpec("a", rate_bits=20e6), HostSpec("b")])
    program = bed.popen("a", ["sleep", "1000"])
    bed.cut("a")
    assert not pings(bed, "b", "a")
    assert bed.ssh("-oConnectTimeout=2", "a", "true").returncode == 255
    assert let_in(bed, "b")
    assert program.poll() is None
    bed.join("a")
    until(lambda: let_in(bed, "a"), "a did not come back")
    assert pings(bed, "b", "a")
    has_rates([20e6], rate_of(bed, "a", "b"))


@pytest.mark.parametrize("silently", [False, True])
def test_a_host_that_was_killed_boots_again(make_bed, silently):
    bed = make_bed([HostSpec("a", rate_bits=20e6), HostSpec("b")])
    (bed.home("a") / "kept").write_text("")
    process = bed.popen("a", ["sleep", "1000"])
    session = bed.popen("head", ["ssh", "-F", str(bed.ssh_config), "a", "sleep 1000"])
    until(lambda: len(netns.processes(bed.namespace("a"))) > 3, "no session")
    bed.kill_host("a", silently=silently)
    assert process.wait() == -signal.SIGKILL
    assert not netns.processes(bed.namespace("a"))
    assert pings(bed, "b", "a") is not silently
    if not silently:
        assert session.wait() == 255
    bed.boot_host("a")
    until(lambda: let_in(bed, "a"), "a did not boot")
    assert bed.ssh("a", "ls $HOME").stdout.split() == ["kept"]
    has_rates([20e6], rate_of(bed, "a", "b"))


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
def test_nothing_is_left_of_a_bed(make_bed, error):
    bed = make_bed(THREE)
    beds = [bed.prefix]
    stubborn = bed.popen("a", [sys.executable, "-c", STUBBORN])
    bed.ssh("b", "nohup sleep 1000 > /dev/null 2>&1 & true")
    bed.close()
    assert stubborn.poll() is not None
    if error:
        with pytest.raises(error):
            fail_in_a_bed(error, beds)
    assert not [left for prefix in beds for left in left_of(prefix)]


def test_a_bed_that_cannot_be_built_leaves_nothing(make_bed, monkeypatch):
    make_bed([HostSpec("a")]).close()
    bed = HostBed(THREE, congestion="no-such-algorithm")
    with pytest.raises(BedError, match="no-such-algorithm`: Error: Unknown tcp congestion algorithm"), bed:
        pass
    assert not left_of(bed.prefix)


def test_what_a_killed_test_left_is_removed_by_the_next_and_a_living_ones_is_not(make_bed):
    mine = make_bed([HostSpec("a")])
    (living, its), (killed, leftover) = bed_of_another(), bed_of_another()
    try:
        killed.kill()
        killed.wait()
        assert netns.of_prefix(leftover)
        make_bed([HostSpec("b")])
        assert not left_of(leftover)
        assert netns.of_prefix(its)
        assert let_in(mine, "a")
    finally:
        living.kill()
        living.wait()
        netns.remove_leftovers()
    assert not left_of(its)


def test_two_beds_with_the_same_names_do_not_meet(make_bed):
    one, other = make_bed([HostSpec("a"), HostSpec("b")]), make_bed([HostSpec("a"), HostSpec("b")])
    assert one.address("a") == other.address("a")
    one.kill_host("b", silently=True)
    assert not pings(one, "a", "b")
    assert pings(other, "a", "b")


def test_the_cluster_states_what_was_asked_for():
    bed = HostBed(TWO_SITES, site_rates={("east", "west"): 50e6})
    cluster = bed.cluster({"a": 2, "c": 1})
    assert cluster.device_ids == ("a-0", "a-1", "c-0")
    assert cluster.host_of("c-0").nic_out == 10e6 / 8
    assert cluster.host_of("a-0").nic_out is None
    assert cluster.link("a-0", "c-0").bandwidth == cluster.link("c-0", "a-0").bandwidth == 50e6 / 8
    assert cluster.link("a-0", "a-1").latency < cluster.link("a-0", "c-0").latency
    assert len(bed.cluster(2).devices) == 6


def test_a_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(host_tools, "_found", lambda name: None)
    monkeypatch.setattr(host_tools, "install_by_apt", lambda package: "only root may use apt-get")
    monkeypatch.setattr(host_tools, "POLICY", Path(os.devnull))
    with pytest.raises(BedError) as caught:
        host_tools.program("sshd")
    assert str(caught.value) == (
        "tests over hosts need `sshd`: it is missing; only root may use apt-get; install Debian's openssh-server"
    )
