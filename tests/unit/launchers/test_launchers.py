import shlex
import socket
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from hetplanner.cost.check import peak_bytes
from hetplanner.cost.tables import CostTables
from hetplanner.elastic.protocol.identity import Version
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.launchers.capacity import (
    HEAP_FACTOR,
    PROCESS_BYTES,
    Machine,
    check_capacity,
    estimated_rank_bytes,
    this_machine,
)
from hetplanner.launchers.disk import disk_need
from hetplanner.launchers.hosts_file import HostEntry, Hosts, Slurm, place_hosts
from hetplanner.launchers.interface import LAUNCH, SWARM_HOST_MODULE, HostCommand, LaunchRequest
from hetplanner.launchers.isolate import why_open
from hetplanner.launchers.local import LocalLauncher, free_loopback_port
from hetplanner.launchers.registry import LAUNCHERS, OVER_HOSTS, make_launcher
from hetplanner.launchers.slurm import batch_file
from hetplanner.liveness.notices import NOTICE_VARIABLE
from hetplanner.plan.placement import ADDRESS_VARIABLE, COORDINATOR_VARIABLE, HOST_VARIABLE
from hetplanner.plan.train import TrainConfig
from hetplanner.swarm.launch import host_part
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, hosted, swarm_plan
from tests.support.plans.grouped import in_groups

RUN_DIR = Path("/tmp/a run's directory")


@pytest.fixture
def plan():
    return chain_plan(shares=(2, 2), cuts=(4,))


# -- conformance: every launcher ------------------------------------------------------------------


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request):
    return make_launcher(request.param)


def test_a_launcher_has_the_name_it_is_registered_by(launcher):
    assert LAUNCHERS[launcher.name] is type(launcher)


def test_a_request_starts_every_rank_once_and_touches_nothing(launcher, plan, tmp_path):
    request = launcher.request(plan, tmp_path / "run", TrainConfig())
    assert request.num_ranks == len(plan.ranks)
    assert request.launcher == launcher.name
    assert list(tmp_path.iterdir()) == []


def test_the_text_of_a_request_is_its_script(launcher, plan):
    request = launcher.request(plan, RUN_DIR, TrainConfig())
    if request.file:
        assert str(request) == request.file
        return
    lines = [line for line in str(request).splitlines() if not line.startswith("#")]
    assert len(lines) == len(request.commands)
    for line, command in zip(lines, request.commands, strict=True):
        words = shlex.split(line)
        assert dict(word.split("=", 1) for word in words[: len(command.env)]) == dict(command.env)
        assert tuple(words[len(command.env) :]) == command.argv


def test_the_worker_is_named_by_a_string_with_the_plan_file(launcher, plan):
    for command in launcher.request(plan, RUN_DIR, TrainConfig()).commands:
        assert ("-m", "hetplanner.runtime.worker") in pairwise(command.argv)
        assert command.argv[-1].endswith("/plan.json")


def test_one_command_of_this_machine_starts_all_or_the_launcher_says_that_none_does(launcher, plan):
    request = launcher.request(plan, RUN_DIR, TrainConfig())
    if not request.starts:
        with pytest.raises(InvalidInput, match=f"launcher: {launcher.name} starts no process; .*dry-run") as error:
            request.command_here()
        own = {"torchrun": "paste its lines", "kubernetes": "give it to `kubectl create -f`"}
        assert own.get(launcher.name, request.by_hand) in str(error.value)
        assert ("kubectl" in str(error.value)) == (launcher.name == "kubernetes")
        return
    assert request.command_here().host == "localhost"
    assert sys.executable in request.command_here().argv
    assert any(str(RUN_DIR) in word for word in request.command_here().argv)


def test_an_unknown_launcher_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=f"one of {', '.join(sorted(LAUNCHERS))}, got 'k8s; rm -rf /'"):
        make_launcher("k8s; rm -rf /")


# -- over hosts -----------------------------------------------------------------------------------


@pytest.fixture(params=sorted(OVER_HOSTS))
def over_hosts(request):
    """A launcher over the hosts of `small_cluster`."""
    return make_launcher(request.param)


def test_every_host_gets_its_ranks_its_number_and_one_endpoint(over_hosts):
    plan = chain_plan(shares=(2, 2), cuts=(4,), cluster=hosted({"d0": "b", "d1": "a", "d2": "a", "d3": "b"}))
    request = make_launcher(over_hosts.name).request(plan, RUN_DIR, TrainConfig())
    assert [(c.host, c.num_ranks) for c in request.commands] == [("b", 2), ("a", 2)]
    first = request.commands[0].env["HETPLANNER_ADDRESS"]
    for node, command in enumerate(request.commands):
        starting = ("-m", "torch.distributed.run") if over_hosts.name == "torchrun" else LAUNCH
        assert command.argv[1 : len(starting) + 9] == (
            *(*starting, "--rdzv-backend=hetplanner", f"--rdzv-endpoint={first}:29500"),
            *("--nnodes=2", f"--rdzv-conf=rank={node}", "--nproc-per-node=2"),
            *("--max-restarts=0", "--log-dir=/dev/null", "-m"),
        )
        assert command.env["HETPLANNER_HOST"] == command.host
        if over_hosts.name != "kubernetes":  # which has addresses of its own for pods
            assert command.env["HETPLANNER_ADDRESS"] == command.host


@pytest.mark.parametrize("name", sorted({*OVER_HOSTS} - {"kubernetes"}))
def test_a_hosts_file_gives_address_port_and_python(name, plan):
    hosts = Hosts(port=29_600, hosts={"host-0": HostEntry(ssh="me@a.lab", address="10.0.0.5", python="~/v/bin/python")})
    first, second, *_ = make_launcher(name, hosts).request(plan, RUN_DIR, TrainConfig()).commands
    assert first.argv[0] == "v/bin/python"  # from the home folder, where a session of ssh begins
    assert "--rdzv-endpoint=10.0.0.5:29600" in first.argv
    assert first.env["HETPLANNER_ADDRESS"] == "10.0.0.5"
    assert (second.argv[0], second.env["HETPLANNER_ADDRESS"]) == ("python3", "host-1")
    assert "--rdzv-endpoint=10.0.0.5:29600" in second.argv


def test_a_launch_over_hosts_says_that_traffic_is_not_encrypted_and_which_address_is_public(over_hosts, plan):
    (text,) = over_hosts.request(plan, RUN_DIR, TrainConfig()).warnings
    assert "neither encrypted nor authenticated" in text
    public = Hosts(hosts={"host-1": HostEntry(address="93.184.216.34")})
    for hosts in (public, public.replace(encrypted=True)) if over_hosts.name != "kubernetes" else ():
        (text,) = make_launcher(over_hosts.name, hosts).request(plan, RUN_DIR, TrainConfig()).warnings
        assert text.startswith("host host-1: 93.184.216.34 is a public address, and traffic")
    hidden = make_launcher(over_hosts.name, Hosts(encrypted=True))
    assert hidden.request(plan, RUN_DIR, TrainConfig()).warnings == ()
    alone = chain_plan(shares=(1, 1), cuts=(4,), cluster=hosted(dict.fromkeys(("d0", "d1", "d2", "d3"), "a")))
    assert make_launcher(over_hosts.name).request(alone, RUN_DIR, TrainConfig()).warnings == ()


def test_emulated_links_are_refused_over_hosts(over_hosts, plan):
    for each in (plan, swarm_plan((1, 1), (4,))):
        with pytest.raises(InvalidInput, match=r"emulate_links: hosts have links of their own|starts no swarm"):
            over_hosts.request(each, RUN_DIR, TrainConfig(emulate_links=True))


def test_a_swarm_over_hosts_is_refused_or_has_a_part_for_each_host(over_hosts):
    cluster = hosted({"d0": "a", "d1": "b", "d2": "a", "d3": "c"})
    workload = preset("tiny-gpt")
    swarm = swarm_plan((2, 2), (workload.boundaries[1],), cluster=cluster, workload=workload)
    if over_hosts.name != "ssh":
        with pytest.raises(InvalidInput, match="plan: this launcher starts no swarm; take --launcher ssh or local"):
            over_hosts.request(swarm, RUN_DIR, TrainConfig())
        return
    hosts = Hosts(hosts={"a": HostEntry(address="10.0.0.1"), "b": HostEntry(notice="aws")}, port=29_700)
    request = make_launcher("ssh", hosts).request(swarm, RUN_DIR, TrainConfig())
    assert [(command.host, command.num_ranks) for command in request.commands] == [("a", 2), ("b", 1), ("c", 1)]
    assert {command.argv[2] for command in request.commands} == {SWARM_HOST_MODULE}
    assert {command.env[COORDINATOR_VARIABLE] for command in request.commands} == {"10.0.0.1:29700"}
    assert [command.env.get("HETPLANNER_NOTICE") for command in request.commands] == [None, "aws", None]
    (warning,) = request.warnings
    assert "gradients that are averaged inside a stage do not" in warning
    assert "hetplanner.hosts.head" in request.command_here().argv


def test_the_environment_says_which_part_of_a_swarm_a_host_has(monkeypatch):
    swarm = swarm_plan((2, 1), (4,), cluster=hosted({"d0": "a", "d1": "b", "d2": "a"}))
    monkeypatch.delenv(NOTICE_VARIABLE, raising=False)
    for name, value in ((HOST_VARIABLE, "b"), (ADDRESS_VARIABLE, "10.0.0.2"), (COORDINATOR_VARIABLE, "10.0.0.1:29700")):
        monkeypatch.setenv(name, value)
    assert host_part.part_of(swarm) == host_part.Part("10.0.0.2", "10.0.0.1:29700", ("d1",), False, None)
    monkeypatch.setenv(HOST_VARIABLE, "a")
    part = host_part.part_of(swarm)
    assert (part.peers, part.leads) == (("d0", "d2"), True)
    monkeypatch.setenv(COORDINATOR_VARIABLE, "10.0.0.1")
    with pytest.raises(InvalidInput, match="must be an address, and ADDRESS:PORT"):
        host_part.part_of(swarm)
    monkeypatch.setenv(HOST_VARIABLE, "z")
    with pytest.raises(InvalidInput, match="'z' is no host of the plan"):
        host_part.part_of(swarm)


def test_hosts_for_a_launcher_of_this_machine_are_refused():
    with pytest.raises(InvalidInput, match="hosts: launcher local runs on this machine alone; take --launcher ssh"):
        make_launcher("local", Hosts())


# -- local ----------------------------------------------------------------------------------------


def test_local_is_what_a_person_would_type(plan):
    request = LocalLauncher(port=29_555).request(plan, RUN_DIR, TrainConfig())
    (command,) = request.commands
    closed = (sys.executable, "-m", "hetplanner.launchers.isolate", "--") if why_open() is None else ()
    assert bool(request.warnings) == (not closed)
    assert command.argv[:-3] == (
        *closed,
        *(sys.executable, *LAUNCH),
        "--rdzv-backend=hetplanner-loopback",
        "--rdzv-endpoint=127.0.0.1:29555",
        "--nnodes=1",
        "--nproc-per-node=4",
        "--max-restarts=0",
        "--log-dir=/dev/null",
    )
    assert command.env["OMP_NUM_THREADS"] == "1"
    assert command.env["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


def test_one_node_lets_the_rendezvous_choose_its_port_and_several_share_one(plan):
    one = LocalLauncher().request(plan, RUN_DIR, TrainConfig()).script()
    two = LocalLauncher(nodes=2).request(plan, RUN_DIR, TrainConfig())
    assert "--rdzv-endpoint=127.0.0.1:0 " in one
    ports = {next(a for a in c.argv if a.startswith("--rdzv-endpoint")) for c in two.commands}
    assert len(ports) == 1
    assert not ports.pop().endswith(":0")


def test_two_nodes_share_the_ranks_and_the_rendezvous():
    plan = chain_plan(shares=(2,), cuts=(3, 6))
    request = LocalLauncher(nodes=2, port=29_555).request(plan, RUN_DIR, TrainConfig())
    sizes = [next(a for a in c.argv if a.startswith("--nproc")) for c in request.commands]
    assert sizes == ["--nproc-per-node=2", "--nproc-per-node=1"]
    assert [f"--node-rank={node}" in c.argv for node, c in enumerate(request.commands)] == [True, True]
    assert request.script().count("--rdzv-endpoint=127.0.0.1:29555") == 2
    assert "# host 1: localhost" in request.script()


@pytest.mark.parametrize(("nodes", "law"), [(0, "1 or more"), (5, "at most the plan's 4 devices")])
def test_absurd_node_counts_are_refused(plan, nodes, law):
    with pytest.raises(InvalidInput, match=law):
        LocalLauncher(nodes=nodes).request(plan, RUN_DIR, TrainConfig())


def test_a_free_port_can_be_bound_on_loopback():
    port = free_loopback_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
    assert port > 1023


def test_values_are_quoted_in_a_script():
    command = HostCommand("h", ("echo", "a b", "$(id)"), {"X": "1; id"})
    assert LaunchRequest("local", RUN_DIR, (command,)).script() == "X='1; id' echo 'a b' '$(id)'\n"


# -- capacity -------------------------------------------------------------------------------------


def test_a_small_plan_fits_this_machine(plan):
    check_capacity(plan)
    assert this_machine().cores >= 1


def test_too_many_ranks_for_the_cores_are_refused_with_the_numbers():
    check_capacity(chain_plan(shares=(1,) * 4, cuts=(4,)), Machine(cores=1, free_bytes=10**12))
    with pytest.raises(Infeasible, match=r"10 ranks on 1 core is more than 8 a core \(8 ranks\); rehearse it"):
        check_capacity(chain_plan(shares=(1,) * 5, cuts=(4,)), Machine(cores=1, free_bytes=10**12))


def test_too_much_memory_is_refused_with_the_numbers(plan):
    needed = sum(estimated_rank_bytes(plan))
    check_capacity(plan, Machine(cores=64, free_bytes=int(needed / 0.9) + 10))
    with pytest.raises(
        Infeasible, match=r"4 ranks need 1\.4 GB of memory \(rank \d, stage \d, alone 351 MB\)"
    ) as error:
        check_capacity(plan, Machine(cores=64, free_bytes=10**9))
    assert "900 MB may be used (90% of 1 GB free)" in str(error.value)
    assert "rehearse it" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_group_has_a_process_for_each_device_and_its_stage_once_more(plan):
    grouped = in_groups(plan, [2, 1, 1, 1])
    two, one = (estimated_rank_bytes(each)[0] for each in (grouped, plan))
    tables, stage = CostTables(plan.problem), plan.stages[0]
    whole = tables.stage_state_bytes(stage.first_op, stage.end_op)
    assert two - one == pytest.approx(PROCESS_BYTES + whole, abs=2)
    pairs = in_groups(chain_plan(shares=(1,) * 3, cuts=(4,)), [2] * 6)
    with pytest.raises(Infeasible, match="12 ranks on 1 core is more than 8"):
        check_capacity(pairs, Machine(cores=1, free_bytes=10**12))


def test_checkpoints_beside_the_steps_need_memory_for_a_copy_of_what_they_hold(plan):
    beside = TrainConfig(checkpoint_every=5, checkpoints_async=True)
    copies = [a - b for a, b in zip(estimated_rank_bytes(plan, beside), estimated_rank_bytes(plan), strict=True)]
    assert sum(copies) == disk_need(plan, beside).checkpoint
    free = int(sum(estimated_rank_bytes(plan)) / 0.9) + 10
    check_capacity(plan, Machine(64, free), TrainConfig(checkpoint_every=5))
    with pytest.raises(Infeasible, match="ranks need"):
        check_capacity(plan, Machine(64, free), beside)
    with pytest.raises(ValidationError, match="checkpoints_async: there are none to write; give checkpoint_every, too"):
        TrainConfig(checkpoints_async=True)


def test_memory_is_the_process_and_what_the_plan_says_with_the_heap_of_the_system(plan):
    small = (estimated_rank_bytes(plan)[0] - PROCESS_BYTES) / HEAP_FACTOR
    deeper = plan.replace(stages=(plan.stages[0].replace(in_flight=3), plan.stages[1]))
    kept = sum(op.activation_bytes for op in plan.ops_of(0)) * plan.problem.workload.micro_batch
    more = (estimated_rank_bytes(deeper)[0] - PROCESS_BYTES) / HEAP_FACTOR - small
    assert more == pytest.approx(kept * (3 - plan.stages[0].in_flight), abs=2)
    assert small == pytest.approx(peak_bytes(plan, CostTables(plan.problem))[0], abs=2)


# -- slurm ----------------------------------------------------------------------------------------


def test_a_batch_file_asks_for_the_plans_nodes_whole_and_starts_the_head_from_its_folder(plan):
    entries = {"host-0": HostEntry(slurm="gpu17", python="~/my env/bin/python")}
    hosts = Hosts(hosts=entries, slurm=Slurm(options=("--partition=gpu", "--time=1-00:00:00")))
    lines = make_launcher("slurm", hosts).request(plan, RUN_DIR, TrainConfig()).script().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --nodes=4", "#SBATCH --nodelist=gpu17,host-1,host-2,host-3", "#SBATCH --exclusive"} <= {*lines}
    assert lines[-3:-1] == ["#SBATCH --partition=gpu", "#SBATCH --time=1-00:00:00"]  # a person's own come last and win
    assert lines[-1] == """exec "$HOME"/'my env/bin/python' -m hetplanner.hosts.head "$SLURM_SUBMIT_DIR\""""


def test_a_nodes_name_in_slurm_is_where_the_others_reach_it_unless_an_address_is_given(plan):
    placed = place_hosts(plan, Hosts(hosts={"host-0": HostEntry(slurm="gpu17"), "host-1": HostEntry(address="b.lab")}))
    assert [host.address for host in placed[:3]] == ["gpu17", "b.lab", "host-2"]


def test_a_host_whose_name_slurm_would_take_for_an_option_is_refused():
    name = "a --output=/etc/x"
    plan = chain_plan(shares=(2, 2), cuts=(4,), cluster=hosted(dict.fromkeys(("d0", "d1", "d2", "d3"), name)))
    with pytest.raises(InvalidInput, match="is no name of a Slurm node; give one in the hosts file"):
        make_launcher("slurm", Hosts(hosts={name: HostEntry(ssh="a.lab")})).request(plan, RUN_DIR, TrainConfig())
    named = make_launcher("slurm", Hosts(hosts={name: HostEntry(slurm="gpu17")})).request(plan, RUN_DIR, TrainConfig())
    assert "#SBATCH --nodelist=gpu17\n" in named.file


def test_a_batch_file_of_another_attempt_says_which(plan):
    text = batch_file(place_hosts(plan, Hosts()), Slurm(), "a model\n#SBATCH --wrap=id", attempt=2)
    assert "export HETPLANNER_ATTEMPT=2\nexec python3 -m" in text
    assert "#SBATCH --job-name=hetplanner-a-model--SBATCH---wrap-id\n" in text


@pytest.mark.parametrize("option", ["-p gpu", "--time=1:00 --wrap=id", "--comment=a\nb", "time=1", "--Name=x"])
def test_an_option_of_sbatch_is_one_word(option):
    with pytest.raises(ValidationError, match="must be a long option of sbatch without blanks"):
        Slurm(options=(option,))


def test_peers_begin_where_their_hosts_have_checkpoints():
    swarm = swarm_plan((2, 2), (4,), cluster=hosted({"d0": "a", "d1": "b", "d2": "c", "d3": "d"}))
    versions = {stage: Version(0, 8) for stage in (0, 1)}
    zero, one = (f"stage-{stage}-lineage-0-step-8.safetensors" for stage in (0, 1))
    saved = {
        "a": frozenset({one}),
        "b": frozenset({zero, one}),
        "c": frozenset({"stage-0-lineage-0-step-4.safetensors"}),
    }
    places = host_part.places_with_weights(swarm, saved, versions)
    assert places == {"d0": 1, "d1": 0, "d2": 1, "d3": 1}
    assert host_part.places_with_weights(swarm, saved, {}) == swarm.stage_of_peer
