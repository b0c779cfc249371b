"""What keeps hosts from running a plan, and how an attempt over them ended: told from facts, without any host."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hetplanner.errors import InvalidInput
from hetplanner.hosts.asking import question, resumed_run
from hetplanner.hosts.checks import Facts, Found, problems, told_at_once, told_of_absence, warnings
from hetplanner.hosts.host_run import HostState
from hetplanner.hosts.on_host.facts import answer, facts, listener, why_not_bound, why_not_reached
from hetplanner.hosts.outcome import find_outcome, summary_lines
from hetplanner.hosts.transport import SrunTransport, SshTransport, Unfit, Unreachable
from hetplanner.launchers.hosts_file import HostEntry, Hosts, place_hosts
from hetplanner.plan.files.plan_files import save_plan
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.directory import RunDirectory
from hetplanner.runs.reports.diagnosis import launcher_exit_codes
from hetplanner.schema import checked
from tests.support.plans.factories import chain_plan, hosted, swarm_plan, tiny_workload

PLAN = chain_plan(shares=(1, 1), cuts=(4,), cluster=hosted({"d0": "a", "d1": "b", "d2": "b", "d3": "c"}))
PLACED = place_hosts(PLAN, Hosts(hosts={"b": HostEntry(ssh="me@b.lab", python="/v/python")}))
FINE = Facts(
    hetplanner="1.0", torch="2.11.0+cpu", python="3.11", unix_s=0.0, address="", data="3 files", free_bytes=10**12
)


def found(**changed):
    """All three hosts as they should be, but for `changed` facts of host b."""
    return [
        Found(host, FINE.replace(address=f"10.0.0.{host.node}", **(changed if host.name == "b" else {})))
        for host in PLACED
    ]


def test_hosts_that_are_as_they_should_be_have_no_problem():
    assert problems(PLAN, TrainConfig(), found(), "1.0") == []
    assert problems(PLAN, TrainConfig(), found(torch="2.11.0+cu128"), "1.0") == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hetplanner": "0.9"}, "has hetplanner 0.9, this is 1.0; install one version on all"),
        ({"system": "darwin"}, "runs darwin; ranks over hosts need Linux"),
        ({"hetplanner": None}, "has hetplanner None, this is 1.0"),
        ({"torch": "2.12.0"}, "its torch is 2.12.0, that of host a is 2.11.0; install one version on all"),
        ({"torch": None}, "/v/python has no torch; install it there"),
        ({"python": "3.12"}, "its Python is 3.12, that of host a is 3.11; take one minor version on all"),
        ({"address_error": "Cannot assign requested address"}, "its address b.lab is not assigned to this host"),
        ({"port_error": "Address already in use"}, "the store cannot listen at b.lab (Address already in use); end"),
        ({"data": "4 files"}, "its data is 4 files, that of host a is 3 files; give all hosts the same files"),
        ({"data": "", "data_error": "/x: No such file or directory"}, "data: /x: No such file or directory; copy it"),
        ({"folder_error": "/r: Read-only file system"}, "its folder /r: Read-only file system; give another one"),
        ({"free_bytes": 10}, "are free in ~/hetplanner-runs; free some, or give another folder"),
    ],
)
def test_what_is_wrong_is_named_with_host_and_remedy(changed, words):
    told = problems(PLAN, TrainConfig(checkpoint_every=5), found(**changed), "1.0")
    assert [name for name, _ in told] == ["b"]
    assert words in told[0][1]


def test_an_address_that_two_hosts_have_and_one_that_no_other_reaches_are_named():
    doubled = [Found(f.host, f.facts.replace(address="10.0.0.0")) for f in found()]
    assert [name for name, text in problems(PLAN, TrainConfig(), doubled, "1.0") if "that of host a, too" in text] == [
        *("b", "c")
    ]
    looped = [Found(f.host, f.facts.replace(address=f"127.0.0.{f.host.node + 1}")) for f in found()]
    assert all("no other host reaches it" in text for _, text in problems(PLAN, TrainConfig(), looped, "1.0"))


@pytest.mark.parametrize(("clock_s", "error_s", "words"), [(7.0, 0.1, "7 s ahead of"), (-8.0, 0.1, "8 s behind")])
def test_a_clock_that_is_far_off_is_named(clock_s, error_s, words):
    rows = found()
    rows[2].clock_s, rows[2].clock_error_s = clock_s, error_s
    ((name, text),) = problems(PLAN, TrainConfig(), rows, "1.0")
    assert name == "c"
    assert words in text
    assert "set-ntp" in text
    rows[2].clock_error_s = 4.0  # a slow answer says less of the clock
    assert problems(PLAN, TrainConfig(), rows, "1.0") == []


def test_everything_is_told_at_once():
    rows = found(folder_error="/r: Read-only file system", hetplanner="0.9")
    rows[0] = Found(PLACED[0], error=Unreachable("cannot be reached: no route; try `ssh a true`"))
    text = told_at_once(problems(PLAN, TrainConfig(), rows, "1.0"))
    assert text.startswith("hosts: 3 problems on 2 hosts, nothing was started. [a] cannot be reached: no route")
    assert text.count("[b]") == 2


def test_hosts_that_do_not_reach_each_other_are_named():
    rows = found()
    rows[1].unreached = {"c": "timed out"}
    ((name, text),) = problems(PLAN, TrainConfig(), rows, "1.0")
    assert (name, text.startswith("does not reach host c (timed out); open the network")) == ("b", True)


def test_a_checkpoint_to_go_on_from_is_one_that_all_hosts_have():
    config = TrainConfig(resume="/runs/x")
    rows = [Found(f.host, f.facts.replace(checkpoints={20: f.host.ranks, 10: f.host.ranks})) for f in found()]
    assert problems(PLAN, config, rows, "1.0") == []
    rows[1] = Found(rows[1].host, rows[1].facts.replace(checkpoints={20: ()}))
    ((name, text),) = problems(PLAN, config, rows, "1.0")
    assert name == "b"
    assert "no checkpoint of the run" in text


def test_under_another_plan_the_hosts_together_need_a_part_of_every_stage(tmp_path):
    save_plan(chain_plan(shares=(1, 1), cuts=(2,)), tmp_path / "plan.json")  # its stages: ranks 0 and 1, 2 and 3
    config = TrainConfig(resume=str(tmp_path))
    parts = {"a": (), "b": (1,), "c": (2, 3)}
    rows = [Found(f.host, f.facts.replace(checkpoints={20: parts[f.host.name]})) for f in found()]
    assert problems(PLAN, config, rows, "1.0") == []
    rows[2] = Found(rows[2].host, rows[2].facts.replace(checkpoints={10: (2, 3)}))
    ((_, text),) = problems(PLAN, config, rows, "1.0")
    assert text.startswith("no checkpoint of the run has a part of every stage on these hosts")


def test_a_static_plan_goes_on_from_a_swarm_of_which_the_hosts_have_every_stage(tmp_path):
    save_plan(swarm_plan([1, 1], [4], cluster=PLAN.problem.cluster), tmp_path / "plan.json")
    config, rows = TrainConfig(resume=str(tmp_path)), found()
    for stage in (0, 1):
        ((_, text),) = problems(PLAN, config, rows, "1.0")
        assert text.startswith("no checkpoint of the run has a part of every stage on these hosts")
        facts = rows[stage].facts.replace(stage_files=(f"stage-{stage}-lineage-0-step-5.safetensors",))
        rows[stage] = Found(rows[stage].host, facts)
    assert problems(PLAN, config, rows, "1.0") == []


def test_a_swarm_goes_on_from_a_checkpoint_of_which_the_hosts_have_every_stage():
    plan = swarm_plan([1, 1], [4], cluster=hosted({"d0": "a", "d1": "b"}))
    names = {f"stage-{stage}-lineage-0-step-{step}.safetensors" for stage, step in ((0, 5), (1, 5), (0, 10))}
    rows = [
        Found(host, FINE.replace(address=f"10.0.0.{host.node}", stage_files=sorted(names)[host.node :: 2]))
        for host in place_hosts(plan, Hosts())
    ]
    assert problems(plan, TrainConfig(resume="/runs/x", steps=6), rows, "1.0") == []
    (told,) = problems(plan, TrainConfig(resume="/runs/x", steps=5), rows, "1.0")
    assert told == ("a", "the run has done 5 steps, so 5 leave nothing to do; give more steps")
    rows[0] = Found(rows[0].host, rows[0].facts.replace(stage_files=()))
    ((host, text),) = problems(plan, TrainConfig(resume="/runs/x", steps=6), rows, "1.0")
    assert host == "a"
    assert text.startswith("no checkpoint of the run has every stage on these hosts")


def test_hosts_that_do_not_come_back_are_named_with_the_way_on_without_them():
    text = told_of_absence([("b", "no route"), ("lab 2", "no route")], 180.0, "20261125-x")
    assert text.startswith("host b has not come back for 180 s (nor has 1 more): no route; to go on without it: ")
    assert text.endswith("`hetplanner train PLAN --resume 20261125-x --without b --without 'lab 2'`")


def test_a_host_tells_whose_parts_of_a_run_it_has(tmp_path):
    for step, names in ((4, ("manifest.json", "rank-0.safetensors")), (8, ("manifest.json",)), (9, ())):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    asked = question(PLAN, TrainConfig(), PLACED[0], None, "run") | {"address": "127.0.0.1", "folder": str(tmp_path)}
    assert checked(Facts, facts(asked | {"data": None}), "facts").checkpoints == {4: (0,), 8: ()}


def test_a_public_address_is_a_warning():
    rows = [Found(f.host, f.facts.replace(address="93.184.216.34")) if f.host.node else f for f in found()[:2]]
    (text,) = warnings(rows)
    assert text.startswith("host b: 93.184.216.34 is a public address")
    assert warnings(rows[:1]) == []
    assert warnings(found()) == []


# -- GPUs -----------------------------------------------------------------------------------------

LISTED = "GPU {}: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
GPU_PLAN = chain_plan(
    shares=(1,),
    cuts=(4,),
    cluster=hosted({"d0": "a", "d1": "a"}).replace(
        devices=tuple(d.replace(kind="A100-80") for d in hosted({"d0": "a", "d1": "a"}).devices)
    ),
)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("", "the plan has 2 × A100-80 there, and nvidia-smi lists none; correct the cluster and plan again, or take"),
        (LISTED.format(0), "the plan has 2 × A100-80 there, and nvidia-smi lists 1"),
        (LISTED.format(0) + LISTED.format(1), ""),
        (LISTED.format(0) + LISTED.format(1) + LISTED.format(2), ""),
        ("GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n", "and it has 2 × T4; correct the cluster"),
        ("GPU 0: Weird (UUID: GPU-1)\nGPU 1: Weird (UUID: GPU-2)\n", ""),  # what is not known is not held against it
        ("nonsense\n", "its GPUs cannot be told"),
    ],
)
def test_a_host_has_the_gpus_that_the_plan_has_there(listed, words):
    (host,) = place_hosts(GPU_PLAN, Hosts())
    rows = [Found(host, FINE.replace(gpus=listed))]
    told = problems(GPU_PLAN, TrainConfig(), rows, "1.0")
    assert [words in text for _, text in told] == ([True] if words else [])
    assert problems(GPU_PLAN, TrainConfig(device="cpu"), rows, "1.0") == []


# -- what a host says of itself -------------------------------------------------------------------


def test_a_host_tells_what_it_is(tmp_path):
    (tmp_path / "words.txt").write_text("words " * 100)
    config = TrainConfig(data=str(tmp_path / "words.txt"))
    asked = question(PLAN, config, PLACED[0], None, None) | {"address": "127.0.0.1", "folder": str(tmp_path / "runs")}
    told = checked(Facts, facts(asked), "facts")
    assert not (tmp_path / "runs").exists()
    assert "is no folder" in facts(asked | {"folder": str(tmp_path / "words.txt" / "runs")})["folder_error"]
    assert (told.address, told.address_error, told.port_error, told.folder_error) == ("127.0.0.1", "", "", "")
    assert told.data.startswith("600 bytes, ")
    assert told.torch
    assert told.free_bytes > 0
    (tmp_path / "words.txt").write_text("wurds " * 100)
    assert facts(asked)["data"] != told.data


@pytest.mark.parametrize(("data", "workload"), [(None, tiny_workload()), ("digits", tiny_workload())])
def test_data_without_a_path_is_told_too(tmp_path, data, workload):
    asked = question(PLAN, TrainConfig(data=data), PLACED[0], None, None)
    assert facts(asked | {"address": "127.0.0.1", "folder": str(tmp_path)})["data"]


def test_a_host_without_the_data_or_with_another_address_says_so(tmp_path):
    asked = question(PLAN, TrainConfig(data="/no/such"), PLACED[0], 29_500, None)
    told = facts(asked | {"address": "203.0.113.7", "folder": str(tmp_path)})
    assert told["data_error"] == "/no/such: No such file or directory"
    assert told["address_error"]
    assert "address_error" in facts(asked | {"address": "no.such.host.invalid", "folder": str(tmp_path)})


def test_a_host_whose_ranks_read_no_data_is_not_asked_for_it():
    plan = chain_plan(shares=(1,), cuts=(3, 6), cluster=hosted({"d0": "a", "d1": "b", "d2": "c"}))
    asked = [question(plan, TrainConfig(), host, 29_500, None) for host in place_hosts(plan, Hosts())]
    assert [each["data"] is None for each in asked] == [False, True, False]
    assert [each["port"] for each in asked] == [29_500, None, None]


def test_a_port_in_use_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert why_not_bound("127.0.0.1", taken.getsockname()[1]) == "Address already in use"
    assert why_not_bound("127.0.0.1", 0) == ""


def test_a_host_is_reached_only_if_it_answers_itself():
    with listener("127.0.0.1") as door, socket.create_server(("127.0.0.1", 0)) as other:
        port = door.getsockname()[1]
        done = threading.Event()

        def take():
            while not done.wait(0.01):
                answer(door, "token")

        thread = threading.Thread(target=take)
        thread.start()
        try:
            assert why_not_reached("127.0.0.1", port, "token", 5.0) == ""
            assert why_not_reached("127.0.0.1", port, "other", 5.0) == "another machine answers there"
        finally:
            done.set()
            thread.join()
        assert "timed out" in why_not_reached("127.0.0.1", other.getsockname()[1], "token", 0.05)
    assert why_not_reached("127.0.0.1", port, "token", 5.0) == "Connection refused"


# -- ssh ------------------------------------------------------------------------------------------


def test_ssh_gets_no_unquoted_word():
    (a, *_) = place_hosts(PLAN, Hosts(hosts={"a": HostEntry(python="~/my env/bin/py$(id)")}))
    argv = SshTransport("/c/ssh config").argv(a)
    assert argv[-3:-1] == ["--", "a"]
    assert argv[-1] == "exec env PYTHONSAFEPATH=1 'my env/bin/py$(id)' -m hetplanner.hosts.on_host.node connect"
    assert argv[argv.index("-F") + 1] == "/c/ssh config"
    assert "BatchMode=yes" in argv


@pytest.mark.parametrize(
    ("code", "said", "kind", "words"),
    [
        (255, "ssh: connect to host b.lab port 22: No route to host", Unreachable, "cannot be reached: ssh: connect"),
        (255, "me@b.lab: Permission denied (publickey).", Unfit, "ssh as me@b.lab is refused"),
        (255, "Host key verification failed.", Unfit, "host key is not known here; log in once and compare it: ssh me"),
        (255, "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", Unfit, "ssh-keygen -R"),
        (255, "/c: line 1: Bad configuration option: x", Unfit, "ssh refuses its configuration"),
        (127, "bash: line 1: /v/python: No such file or directory", Unfit, "/v/python cannot be run"),
        (1, "/v/python: No module named hetplanner.hosts", Unfit, "/v/python has no hetplanner; install it there"),
        (1, "Segmentation fault", Unfit, "our program ends at once: Segmentation fault"),
    ],
)
def test_why_ssh_ended_is_said_with_a_remedy(code, said, kind, words):
    error = SshTransport().why_closed(code, said.splitlines(), PLACED[1])
    assert type(error) is kind
    assert words in str(error)


def test_srun_gets_the_node_by_its_name_in_slurm_and_begins_at_home():
    (a, *_) = place_hosts(PLAN, Hosts(hosts={"a": HostEntry(slurm="gpu17", python="~/my env/bin/python")}))
    argv = SrunTransport().argv(a)
    assert argv[0] == "srun"
    assert {"--nodelist=gpu17", f"--chdir={Path.home()}", "--unbuffered", "--overlap"} <= set(argv)
    assert argv[argv.index("--") + 3 :] == ["my env/bin/python", "-m", "hetplanner.hosts.on_host.node", "connect"]


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("srun: error: Unable to create step for job 7: Invalid node", Unreachable, "Slurm starts nothing there: srun"),
        (
            "env: '/v/python': No such file or directory\nsrun: error: n: task 0: Exited with exit code 127",
            Unfit,
            "run",
        ),
        ("/v/python: No module named hetplanner\nsrun: error: n: task 0: Exited with exit code 1", Unfit, "install it"),
    ],
)
def test_why_srun_ended_is_said_with_a_remedy(said, kind, words):
    error = SrunTransport().why_closed(127 if "127" in said else 1, said.splitlines(), PLACED[1])
    assert type(error) is kind
    assert words in str(error)


def test_a_run_of_this_machine_is_no_run_to_go_on_from_over_hosts(tmp_path):
    assert resumed_run(TrainConfig()) is None
    with pytest.raises(InvalidInput, match="ran on this machine, and its checkpoints are here"):
        resumed_run(TrainConfig(resume=str(tmp_path)))


# -- how an attempt ended -------------------------------------------------------------------------

NAMES = [f"d{rank}, host {host}" for rank, host in enumerate("abbc")]


def part(node, state=None, **changes):
    """A host's part as `find_outcome` sees it; by default it runs."""
    fields = {
        "started": True,
        "done": False,
        "lives": True,
        "refused": "",
        "said": "",
        "heard_s": 1000.0,
        "since_s": 0.0,
    }
    fields |= {"host": PLACED[node], "state": state and HostState(attempt=0, **state), "unheard_s": lambda: 0.0}
    return SimpleNamespace(**(fields | changes))


def judged(*parts, steady_s=60.0):
    return find_outcome(parts, NAMES, 45.0, steady_s)


def test_while_all_run_or_have_ended_well_nothing_is_wrong():
    assert judged(part(0), part(1), part(2)) is None
    assert judged(*(part(k, {"ended": True, "exit_code": 0}, done=True, lives=False) for k in range(3))) is None
    assert judged(part(0), part(1, unheard_s=lambda: 44.0), part(2)) is None


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"unheard_s": lambda: 46.0}, 4, "host b is lost: it did not answer for 45 s"),
        ({"lives": False}, 4, "host b: its node process has ended; the machine was restarted"),
        ({"lives": False, "said": "no space"}, 4, "host b: its node process has ended; it said: no space"),
        ({"refused": "port 29500: in use"}, 4, "host b: port 29500: in use"),
        ({"state": {"lost": (1, "rank 1 (d1, host b) has been silent")}}, 4, "rank 1 (d1, host b) has been silent"),
        ({"state": {"ended": True, "exit_code": 1, "ranks": {1: 1, 2: -9}}}, 4, "rank 2 (d2, host b) was killed by"),
        ({"state": {"ended": True, "exit_code": 1, "ranks": {1: 75, 2: 75}}}, 75, "rank 1 (d1, host b) was told"),
        (
            {"state": {"ended": True, "exit_code": 1, "ranks": {1: 1}, "words": ["host b: 3 processes"]}},
            4,
            "3 processes",
        ),
        ({"state": {"ended": True, "exit_code": 1, "ranks": {1: 1}}}, 4, "rank 1 (d1, host b) ended with exit code 1"),
        ({"state": {"ended": True, "exit_code": 3}}, 4, "host b: its launcher ended with exit code 3"),
        ({"state": {"ended": True, "exit_code": 1, "ranks": {0: -9, 3: -9}}}, 4, "host b: its launcher ended with"),
    ],
)
def test_what_went_wrong_is_told_with_the_host(changed, code, words):
    outcome = judged(part(0), part(1, changed.pop("state", None), **changed), part(2))
    assert outcome.code == code
    assert words in outcome.words


def test_ranks_that_all_stand_are_given_up_only_over_a_network_that_was_there():
    stands = {"stands": "rank 0 in training, step 3, waiting for rank 1"}
    rows = [part(k, stands) for k in range(3)]
    assert "no rank gets on any more" in judged(*rows).words
    rows[1].since_s = 990.0  # it came back ten seconds ago
    assert judged(*rows) is None
    assert judged(part(0, stands), part(1), part(2, stands)) is None


def test_exit_codes_reach_the_agents_diagnosis_with_the_killed_one_first(tmp_path):
    rows = [
        part(0, {"ended": True, "exit_code": 1, "ranks": {0: 1}}),
        part(1, {"ended": True, "exit_code": 1, "ranks": {1: 75, 2: -9}}),
        part(2, {"ended": True, "exit_code": 0, "ranks": {3: 0}}),
    ]
    directory = RunDirectory(tmp_path)
    directory.launcher_log.write_text("\n".join(summary_lines(rows)) + "\n")
    found_codes = launcher_exit_codes(directory)
    assert found_codes == {2: -9, 0: 1, 1: 75}
    assert next(iter(found_codes)) == 2
    assert summary_lines([part(0)]) == []
