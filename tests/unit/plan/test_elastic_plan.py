"""Elastic plans: what they must hold, what core reads of them, and who refuses them in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hetplanner as hp
from hetplanner.cli.app import app
from hetplanner.codecs.spec import Codec
from hetplanner.cost.estimate import estimate_plan
from hetplanner.elastic.protocol.settings import ElasticSettings, settings_of
from hetplanner.errors import Infeasible, InvalidInput
from hetplanner.launchers.capacity import PROCESS_BYTES, Machine, check_capacity, estimated_peer_bytes
from hetplanner.launchers.local import LocalLauncher
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.elastic.settings import ElasticTimes, WiringSettings
from hetplanner.plan.files.plan_files import any_plan_from_data, load_any_plan, plan_to_data, save_plan
from hetplanner.plan.model import LinkCodec, OuterOptimizer
from hetplanner.plan.placement import planned_gpus, ranks_by_host
from hetplanner.plan.train import TrainConfig
from hetplanner.runs.agent.service import read_start_request
from hetplanner.runs.plan_store import PlanStore
from hetplanner.runs.reading.reader import RunReader
from hetplanner.swarm.spec import spec_of
from hetplanner.workload.presets import preset
from tests.support.plans.factories import chain_plan, sites_cluster, small_cluster, swarm_plan, tiny_workload
from tests.support.plans.grouped import in_groups

SWARM = swarm_plan([2, 3], [3]).replace(estimate=estimate_plan(chain_plan([8, 8], [3])))
INT8, INT4 = Codec(name="int8"), Codec(name="int4")


def data_of(plan=SWARM):
    return json.loads(json.dumps(plan_to_data(plan)))


def read(data):
    return any_plan_from_data(data, "x.json")


def test_static_plans_stay_as_older_versions_read_them_and_say_their_mode():
    assert {key: data_of(chain_plan([2], [3]))[key] for key in ("format", "mode")} == {
        "format": "hetplanner/plan@1",
        "mode": "static",
    }
    assert {key: data_of()[key] for key in ("format", "mode")} == {"format": "hetplanner/plan@2", "mode": "elastic"}


def test_quantities_are_written_with_their_units():
    data = data_of()
    assert data["times"]["silence"] == "1.5 s"
    assert data["rebalancing"]["period"] == "60 s"
    assert data["wiring"]["ban"] == "3 s"


def test_a_plan_without_the_newer_options_is_read_as_it_was():
    data = data_of()
    del data["delayed_updates"], data["local_steps"]
    assert "outer" not in data
    assert read(data) == SWARM


def test_delayed_updates_reach_the_run_and_its_memory():
    late = SWARM.replace(delayed_updates=True)
    assert read(data_of(late)) == late
    assert spec_of(late, TrainConfig()).delayed_updates
    with pytest.raises(InvalidInput, match="delayed_updates: do not go with local steps"):
        late.replace(local_steps=2)
    assert all(a > b for a, b in zip(estimated_peer_bytes(late), estimated_peer_bytes(SWARM), strict=True))


def test_the_core_reads_what_the_plan_says():
    assert settings_of(SWARM) == ElasticSettings(stages=2, micro_batches=16)
    wiring = WiringSettings(rule="round-robin", ban=7.0, ema_alpha=0.5, hop_share=0.5, unmeasured=2.0)
    times = ElasticTimes(
        ping=1.0, silence=4.0, lease=60.0, answer=9.0, reduce=20.0, resend=2.0, settle=3.0, join_hold=5.0, restore=6.0
    )
    told = SWARM.replace(wiring=wiring, times=times)
    assert settings_of(told, checkpoint_steps=8) == ElasticSettings(
        stages=2, micro_batches=16, ping_s=1.0, silence_s=4.0, lease_s=60.0, answer_s=9.0, reduce_s=20.0, resend_s=2.0,
        ban_s=7.0, hop_share=0.5, ema_alpha=0.5, unmeasured_s=2.0, settle_s=3.0, join_hold_s=5.0, restore_s=6.0,
        checkpoint_steps=8, wiring="round-robin",
    )  # fmt: skip


def test_a_link_of_the_start_may_have_its_own_codec_and_newcomers_have_the_usual():
    rule = LinkCodec(from_device="d0", to_device="d2", role="activation", codec=INT4)
    plan = SWARM.replace(activation_codec=INT8, link_codecs=(rule,))
    assert plan.codec_between("d0", "d2", "activation") == INT4
    assert plan.codec_between("d1", "d2", "activation") == INT8
    assert plan.codec_between("newcomer", "d2", "activation") == INT8
    assert plan.codec_between("d2", "d0", "gradient") == Codec()
    assert plan.stage_of_peer == {"d0": 0, "d1": 0, "d2": 1, "d3": 1, "d4": 1}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("stages", 0, "peers"), [], r"stages\[0\].peers"),
        (("stages", 1, "peers"), ["d2", "nobody"], r"stages\[1\].peers\[1\]: 'nobody' is no usable device"),
        (("stages", 1, "peers"), ["d2", "d0"], r"stages\[1\].peers\[1\]: 'd0' is there twice"),
        (("stages", 1, "first_op"), 4, r"stages\[1\]: ops must follow on without gaps"),
        (("stages", 1, "end_op"), 5, "stages: must cover all"),
        (("stages", 0, "in_flight"), 0, r"stages\[0\].in_flight"),
        (("routes",), [], "routes: unknown field"),
        (("mode",), "liquid", "mode"),
        (("activation_codec",), {"name": "topk", "ratio": 10.0}, "activation_codec: must be one of none, fp16"),
        (("averaging_codec",), {"name": "powersgd", "rank": 2}, "averaging_codec: must be one of none, fp16"),
        (("activation_codec",), {"name": "int8", "delta": True}, "int8 with delta"),
        (
            ("link_codecs",),
            [{"from": "d0", "to": "d9", "role": "activation", "codec": {"name": "int8"}}],
            r"link_codecs\[0\]: 'd9' serves no stage at the start",
        ),
        (("times", "silence"), "100 ms", "times: silence: must be longer than ping"),
        (("times", "ping"), 0.4, "times.ping"),
        (("times", "lease"), "-1 s", "times.lease: must be 0 or more|times.lease: must be above 0"),
        (("wiring", "slots"), 0, "wiring.slots"),
        (("wiring", "rule"), "luck", "wiring.rule"),
        (("wiring", "ema_alpha"), 0.0, "wiring.ema_alpha"),
        (("rebalancing", "policy"), "magic", "rebalancing.policy"),
        (("format",), "hetplanner/plan@6", "newer than this hetplanner reads"),
    ],
)
def test_a_wrong_elastic_plan_is_refused_by_name(path, value, words):
    data = data_of()
    *inside, last = path
    part = data
    for key in inside:
        part = part[key]
    part[last] = value
    with pytest.raises(InvalidInput, match=words) as refused:
        read(data)
    assert str(refused.value).startswith("x.json: ")


def test_peers_that_wiring_or_averaging_may_join_need_a_link():
    cluster = sites_cluster([1, 1, 1])
    links = tuple(k for k in cluster.site_links if {k.from_site, k.to_site} != {"site-0", "site-2"})
    gappy = cluster.replace(site_links=links)
    fine = swarm_plan([1, 1, 1], [3, 6], cluster=gappy)
    assert read(data_of(fine)) == fine
    with pytest.raises(InvalidInput, match=r"no link between d0 .* and d2 .* for wiring from stage 0 to 1"):
        read(data_of(swarm_plan([1, 2], [3], cluster=gappy)))
    with pytest.raises(InvalidInput, match=r"no link between d0 .* and d2 .* for averaging in stage 0"):
        read(data_of(swarm_plan([3], [], cluster=gappy)))


# -- who takes plans -------------------------------------------------------------------------------

PYTHON_USERS = {
    "estimate_plan": hp.estimate_plan,
    "simulate": hp.simulate,
    "simulate_step_s": hp.simulate_step_s,
    "simulate_spread": lambda plan: hp.simulate_spread(plan, hp.Jitter(compute=0.1)),
    "attribute_gain": hp.attribute_gain,
    "reschedule": lambda plan: hp.reschedule(plan, "gpipe"),
    "evaluate_changes": lambda plan: hp.evaluate_changes(plan, hp.Changes(changes=())),
    "search": lambda plan: hp.search(plan.problem, start=plan, budget="0 s", live=False),
    "plots.allocation": lambda plan: hp.plots.allocation(plan),
    "plots.memory": lambda plan: hp.plots.memory(plan),
    "plots.memory_over_time": lambda plan: hp.plots.memory_over_time(plan),
    "plots.stage_times": lambda plan: hp.plots.stage_times(plan),
    "plots.step_gantt": lambda plan: hp.plots.step_gantt(plan),
    "plots.link_use": lambda plan: hp.plots.link_use(plan),
    "plots.dag": lambda plan: hp.plots.dag(plan.problem.workload, plan),
}


@pytest.mark.parametrize("name", PYTHON_USERS)
def test_who_needs_routes_refuses_an_elastic_plan_in_one_line(name):
    with pytest.raises(InvalidInput, match=r"mode: must be 'static' here, got 'elastic'") as refused:
        PYTHON_USERS[name](SWARM)
    assert str(refused.value).isprintable()


def test_kept_plans_hold_an_elastic_plan_and_runs_read_it_but_for_routes(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path))
    shelf = PlanStore()
    shelf.keep(chain_plan([2], [3]), "static")
    shelf.keep(SWARM, "elastic")
    assert shelf.load("elastic") == SWARM
    assert len(shelf.load("static").stages) == 2
    folder = tmp_path / "run"
    folder.mkdir()
    save_plan(SWARM, folder / "plan.json")
    reader = RunReader(folder)
    assert reader.any_plan == SWARM
    assert reader.labels == ("coordinator",)
    with pytest.raises(InvalidInput, match=r"plan: mode: must be 'static' here"):
        _ = reader.plan.places_of_rank


def test_the_agent_takes_an_elastic_plan_and_starts_its_swarm_by_one_command(tmp_path):
    body = json.dumps({"plan": plan_to_data(SWARM), "config": {}}).encode()
    assert read_start_request(body)[1] == SWARM
    (command,) = LocalLauncher().request(SWARM, tmp_path, TrainConfig()).commands
    assert command.argv[-2:] == ("hetplanner.swarm.launch.rehearse", str(tmp_path))
    assert len(estimated_peer_bytes(SWARM)) == 5
    with pytest.raises(Infeasible, match="5 ranks on 0 cores"):
        check_capacity(SWARM, Machine(0, 2**40))
    with pytest.raises(Infeasible, match="rank 2, stage 1"):
        check_capacity(SWARM, Machine(8, 2**20))


@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "trace.json", "--plan", "swarm.json"),
        ("plan", "lab.json", "tiny-gpt", "--start-from", "swarm.json", "--evaluations", "10"),
        ("simulate", "swarm.json", "--schedule", "gpipe"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_need_routes_refuse_an_elastic_plan(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    save_plan(SWARM, "swarm.json")
    Path("trace.json").write_text("{}")
    hp.save_cluster(small_cluster(4), "lab.json")
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, InvalidInput), refused.output
    assert str(refused.exception).startswith("swarm.json: mode: must be 'static' here")


def test_each_reader_points_at_the_other(tmp_path):
    save_plan(SWARM, tmp_path / "swarm.json")
    save_plan(chain_plan([2], [3]), tmp_path / "plan.json")
    assert isinstance(load_any_plan(tmp_path / "swarm.json"), ElasticPlan)
    assert hp.load_elastic_plan(tmp_path / "swarm.json") == SWARM
    with pytest.raises(InvalidInput, match=r"swarm.json: mode: must be 'static' here"):
        hp.load_plan(tmp_path / "swarm.json")
    with pytest.raises(InvalidInput, match=r"plan.json: mode: must be 'elastic' here, got 'static'"):
        hp.load_elastic_plan(tmp_path / "plan.json")


def test_what_is_no_field_at_all_stays_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = SWARM.nonsense
    assert SWARM.num_micro_batches == tiny_workload().num_micro_batches


def test_a_rehearsal_keeps_the_rules_and_says_where_they_do_not_fit():
    rules = swarm_plan([2, 2], [2], delayed_updates=True)
    small = hp.rehearse(rules, stages=2, replicas=1, budget="20 evaluations")
    assert isinstance(small, ElasticPlan)
    assert (small.delayed_updates, len(small.stages)) == (True, 2)
    assert small.problem.rehearsal_of
    assert small.estimate is not None

    workload = preset("tiny-llama", global_batch=8, micro_batch=1)  # no weights are tied in it, in tiny-gpt some are
    local = swarm_plan([2, 2], [3], workload=workload, local_steps=4, outer=OuterOptimizer())
    kept = hp.rehearse(local, stages=2, replicas=1, model="tiny-llama", budget="20 evaluations")
    assert kept.local_steps == 4
    with pytest.raises(InvalidInput, match="tied"):
        hp.rehearse(local, stages=2, replicas=1, budget="20 evaluations")


def of_gpus(degrees):
    """A swarm of three peers that are groups of so many GPUs."""
    cluster = small_cluster(3)
    gpus = tuple(device.replace(kind="T4") for device in cluster.devices)
    workload = preset("tiny-gpt", global_batch=8, micro_batch=2)
    return in_groups(swarm_plan([1, 2], [3], cluster=cluster.replace(devices=gpus), workload=workload), degrees)


GROUPED = of_gpus([2, 1, 4])


def test_a_peer_may_be_a_group_which_counts_with_all_its_devices() -> None:
    assert read(data_of(GROUPED)) == GROUPED
    assert data_of(GROUPED)["format"] == "hetplanner/plan@3"
    hosts = ranks_by_host(GROUPED)
    assert [len(ranks) for ranks in hosts.values()] == [1, 1, 1], "a process for each peer, which starts the others"
    gpus = [len(planned_gpus(GROUPED, "auto", ranks)) for ranks in hosts.values()]
    assert gpus == [2, 1, 4]
    single = estimated_peer_bytes(of_gpus([1, 1, 1]))
    more = [found - one for found, one in zip(estimated_peer_bytes(GROUPED), single, strict=True)]
    assert [round(bytes_ / PROCESS_BYTES) for bytes_ in more] == [1, 0, 3], "a process for each device"
    check_capacity(GROUPED, Machine(cores=1, free_bytes=10**11))
    with pytest.raises(Infeasible, match="12 ranks on 1 core"):
        check_capacity(of_gpus([4, 4, 4]), Machine(cores=1, free_bytes=10**11))


def _named_by_another(data) -> None:
    data["stages"][0]["peers"] = ["d0-1"]


def _undecided(data) -> None:
    del data["problem"]["groups"]
    data["problem"]["constraints"]["tensor"] = [1, 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_named_by_another, r"stages\[0\]\.peers\[0\]: 'd0-1' is in the group of 'd0'; name that one"),
        (_undecided, r"problem\.groups: must say which devices serve together; plan again"),
    ],
)
def test_a_damaged_plan_with_groups_is_refused(damage, message) -> None:
    data = data_of(GROUPED)
    damage(data)
    with pytest.raises(InvalidInput, match=message):
        read(data)


def test_groups_whose_optimizer_needs_whole_matrices_are_not_trained() -> None:
    workload = tiny_workload().replace(optimizer="adafactor")
    plan = in_groups(swarm_plan([1, 1], [3], workload=workload), [2, 1])
    with pytest.raises(InvalidInput, match="groups: adafactor needs whole matrices"):
        spec_of(plan, TrainConfig(steps=2))
