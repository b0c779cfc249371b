"""The hosts file: what it says, and every way in which it is refused; where a run is launched is kept with it."""

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.launchers.hosts_file import HostEntry, Hosts, place_hosts, read_hosts
from hetplanner.launchers.launch_file import Launch, load_launch, save_launch
from tests.support.plans.factories import chain_plan, hosted

GOOD = """
format = "hetplanner/hosts@1"
ssh_config = "config"
port = 29600
[hosts.gpu-a]
ssh = "me@gpu-a.lab"
address = "10.0.0.5"
python = "/opt/venv/bin/python"
folder = "~/runs/"
[hosts."gpu b"]
ssh = "b"
"""
PLAN = chain_plan(shares=(1, 1), cuts=(4,), cluster=hosted({"d0": "gpu b", "d1": "gpu-a", "d2": "gpu-a", "d3": "c"}))


@pytest.fixture
def write(tmp_path):
    def do(text):
        path = tmp_path / "hosts.toml"
        path.write_bytes(text.encode("latin-1"))
        return path

    (tmp_path / "config").touch()
    return do


def test_a_good_file(write, tmp_path):
    hosts = read_hosts(write(GOOD))
    assert (hosts.ssh_config, hosts.port) == (str(tmp_path / "config"), 29600)
    b, a, c = place_hosts(PLAN, hosts)
    assert [(h.name, h.node, h.ranks) for h in (b, a, c)] == [("gpu b", 0, (0,)), ("gpu-a", 1, (1, 2)), ("c", 2, (3,))]
    assert (a.ssh, a.address, a.python, a.run_folder) == (
        *("me@gpu-a.lab", "10.0.0.5", "/opt/venv/bin/python"),
        "~/runs/gpu-a",
    )
    assert (b.ssh, b.address, b.python) == ("b", "b", "python3")
    assert (c.ssh, c.address, c.run_folder) == ("c", "c", "~/hetplanner-runs/c")


def test_the_address_is_the_host_part_of_what_ssh_is_given():
    placed = place_hosts(PLAN, Hosts(hosts={"gpu b": HostEntry(ssh="me@10.0.0.9")}))
    assert placed[0].address == "10.0.0.9"


def test_hosts_whose_names_become_one_file_name_have_folders_of_their_own():
    plan = chain_plan(shares=(1,), cuts=(4,), cluster=hosted({"d0": "a b", "d1": "a/b"}))
    entries = {"a b": HostEntry(ssh="x"), "a/b": HostEntry(ssh="y")}
    one, two = (host.run_folder for host in place_hosts(plan, Hosts(hosts=entries)))
    assert one != two
    assert "/.." not in one
    assert one.count("/") == two.count("/") == 2


@pytest.mark.parametrize(
    ("old", "new", "law"),
    [
        ('format = "hetplanner/hosts@1"', "", "format: required field is missing"),
        ("hosts@1", "hosts@9", "newer than this hetplanner reads"),
        ("hosts@1", "cluster@1", "is this a hosts file"),
        ("port = 29600", "port = 80", "port: .*1024"),
        ("port = 29600", "prot = 29600", "prot: unknown field"),
        ("[hosts.gpu-a]", "[hosts.gpu-a", "not TOML"),
        ("gpu-a.lab", "\xff", "not TOML"),
        ('ssh = "b"', 'ssh = "-oProxyCommand=id"', "must be HOST or USER@HOST"),
        ('ssh = "b"', 'ssh = "a; rm -rf ~"', "must be HOST or USER@HOST"),
        ('ssh = "b"', 'ssh = "$(id)"', "must be HOST or USER@HOST"),
        ('ssh = "b"', 'ssh = "b:2222"', "for ports, jump hosts and keys give ssh_config"),
        ("10.0.0.5", "fe80::1", "address: must be an IPv4 address or a name"),
        ("10.0.0.5", "-x", "address: must be an IPv4 address or a name"),
        ("/opt/venv/bin/python", "-c", "python: must be a program's name or path"),
        ("/opt/venv/bin/python", "py\\nthon", "python: must be a program's name or path"),
        ("~/runs/", "runs", "folder: must be an absolute path, or begin with ~/"),
        ('"config"', '"none"', "ssh_config: .*none is no file"),
        ("gpu-a.lab", "x" * 300, "ssh"),
    ],
)
def test_a_file_that_is_not_right_says_where(write, old, new, law):
    assert old in GOOD
    with pytest.raises(InvalidInput, match=law) as error:
        read_hosts(write(GOOD.replace(old, new, 1)))
    assert "hosts.toml" in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"none\.toml: no such file"):
        read_hosts(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("entries", "law"),
    [
        ({"gpu-aa": {}}, r"hosts\.gpu-aa: the cluster has no such host; did you mean 'gpu-a'\?"),
        ({"x": {}}, r"hosts\.x: the cluster has no such host; it has c, gpu b, gpu-a"),
        ({}, r"'gpu b' is no name that ssh takes; list it in the hosts file"),
        ({"gpu b": {"ssh": "b", "address": "10.0.0.1"}, "c": {"address": "10.0.0.1"}}, "gpu b and c have one address"),
        ({"gpu b": {"ssh": "b"}, "c": {"ssh": "b", "address": "10.0.0.1"}}, "gpu b and c have one ssh, b"),
    ],
)
def test_hosts_that_do_not_fit_the_plan_are_named(entries, law):
    hosts = Hosts(hosts={name: HostEntry(**entry) for name, entry in entries.items()})
    with pytest.raises(InvalidInput, match=law):
        place_hosts(PLAN, hosts)


def test_a_host_of_the_cluster_that_the_plan_does_not_use_may_be_listed():
    plan = chain_plan(shares=(1,), cuts=(4,), cluster=PLAN.problem.cluster)
    hosts = Hosts(hosts={"gpu b": HostEntry(ssh="b"), "c": HostEntry()})
    assert [host.name for host in place_hosts(plan, hosts)] == ["gpu b", "gpu-a"]


def test_where_a_run_is_launched_is_kept_in_its_folder(tmp_path, write):
    assert load_launch(tmp_path).is_local
    launch = Launch(launcher="ssh", hosts=read_hosts(write(GOOD)), run="20261120-run")
    save_launch(launch, tmp_path)
    assert load_launch(tmp_path) == launch
    assert (tmp_path / "launch.json").stat().st_mode & 0o777 == 0o600


def test_a_damaged_launch_is_refused(tmp_path):
    (tmp_path / "launch.json").write_text(
        '{"format": "hetplanner/launch@1", "launcher": "ssh", "hosts": {"port": "x"}}'
    )
    with pytest.raises(InvalidInput, match=r"launch\.json: hosts\.port"):
        load_launch(tmp_path)
