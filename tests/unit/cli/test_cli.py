"""The command line as scripts see it: JSON keys, exit codes, one-line errors."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hetplanner.plan.files.plan_files import load_elastic_plan, load_plan
from hetplanner.simulator.replay import replay_step
from hetplanner.ui.shell.models.texts import percent_text
from tests.support.processes.called import called
from tests.support.processes.patience import HANG_S

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
LAB = str(SAMPLES / "lab_2_sites_4.json")
WORLD = str(SAMPLES / "dtfm_5_worldwide.json")
PROGRAM = shutil.which("hetplanner", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs the command line in an empty folder with a home of its own."""
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return partial(called, monkeypatch)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs the installed console script so, as a process."""
    monkeypatch.setenv("HETPLANNER_HOME", str(tmp_path / "home"))
    assert PROGRAM is not None, "the console script is not installed"

    def run(*arguments):
        return subprocess.run(
            [PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S
        )

    return run


def plan_file(call, tmp_path, *more):
    done = call(
        "plan", LAB, "tiny-gpt", "--stages", "2", "--replicas", "2", "--evaluations", "2000", "-o", "plan.json", *more
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "plan.json"


def failure(done, code):
    """The one line of a refused request."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("hetplanner: ")
    assert "Traceback" not in done.stderr
    return lines[0]


def test_cluster_show_lists_devices(start):
    data = json.loads(start("cluster", "show", WORLD, "--json").stdout)
    assert len(data["devices"]) == 64
    assert {"id", "kind", "site", "host"} <= data["devices"][0].keys()


def test_cluster_commands_for_people(call):
    text = call("cluster", "show", WORLD).stdout
    assert "Tokyo" in text
    assert "Gbit/s" in text
    assert "valid" in call("cluster", "validate", WORLD).stdout


def test_gpus_and_a_measured_link_go_into_a_cluster_file(call, tmp_path):
    (tmp_path / "gpus.txt").write_text("GPU 0: Tesla T4 (UUID: GPU-1)\n")
    said = call("cluster", "add-host", LAB, "gpus.txt", "--site", "Tokyo", "--host", "box", "-o", "more.json", "--json")
    assert json.loads(said.stdout)["new_devices"] == ["box-gpu0"]
    end = {"sum_received": {"bits_per_second": 3e8}}
    (tmp_path / "iperf.json").write_text(json.dumps({"start": {}, "intervals": [], "end": end}))
    ends = ("--from", "box", "--to", "Tokyo")
    assert call("cluster", "set-link", "more.json", "iperf.json", *ends, "-o", "more.json").returncode == 2
    site = json.loads((tmp_path / "more.json").read_text())["sites"][0]["name"]
    said = call("cluster", "set-link", "more.json", "iperf.json", "--from", "Tokyo", "--to", site, "-o", "more.json")
    assert said.returncode == 0
    assert "300 Mbit/s" in call("cluster", "show", "more.json").stdout


@pytest.mark.parametrize("form", ["csv", "npy", "site-csv", "site-json", "json", "graphml", "node-link"])
def test_cluster_convert_there_and_back(call, tmp_path, form):
    out = {"json": "copy.json", "graphml": "copy.graphml", "node-link": "graph.json"}.get(form, "tables")
    assert call("cluster", "convert", LAB, "--to", form, "-o", out).returncode == 0
    source = out if form != "site-json" else str(next((tmp_path / out).glob("*.json")).relative_to(tmp_path))
    assert call("cluster", "convert", source, "-o", "back.json").returncode == 0
    there, back = (json.loads(call("cluster", "show", f, "--json").stdout) for f in (LAB, "back.json"))
    assert there["devices"] == back["devices"]


def test_cluster_generate_writes_the_drawn_cluster(call):
    assert "mixed-gpus-3" in call("cluster", "generate", "mixed-gpus", "--seed", "3", "-o", "mixed.json").stdout
    data = json.loads(call("cluster", "show", "mixed.json", "--json").stdout)
    assert {device["kind"] for device in data["devices"]} == {"T4", "V100-16", "A100-40"}


def test_workload_show(call):
    data = json.loads(call("workload", "show", "gpt2", "--json").stdout)
    assert data["num_params"] == 124_439_808
    assert "124,439,808" in call("workload", "show", "gpt2").stdout


def test_plan_json_has_the_promised_keys(call, tmp_path):
    shape = ["--stages", "8", "--replicas", "8", "--evaluations", "200"]
    done = call("plan", WORLD, "gpt3-xl", "--objective", "dtfm", *shape, "--json")
    data = json.loads(done.stdout)
    promised = {"step_s", "tokens_per_s", "terms", "bottleneck", "evaluations", "seconds", "seed", "lower_bound", "gap"}
    assert promised <= data.keys()
    assert set(data["dtfm"]) == {"data_parallel_s", "pipeline_s", "total_s"}
    assert data["plan"]["format"] == "hetplanner/plan@1"
    assert set(data["gain"]["parts"]) <= {"placement", "cut", "shares", "depth", "codecs", "reducer"}


def test_plan_says_where_the_gain_comes_from(call):
    world = str(SAMPLES / "dtfm_2_spot.json")
    shape = ["--stages", "8", "--replicas", "8", "--evaluations", "2000"]
    text = call("plan", world, "gpt3-xl", "--objective", "dtfm", *shape).stdout
    assert "over the same stages and pipelines as a launcher places them" in text
    assert "lost without one of them: placement 100%" in text


def test_lossy_plans_say_what_is_not_modelled(call):
    shape = ["--stages", "8", "--replicas", "8", "--evaluations", "2000"]
    lossy = [*shape, "--codecs", "none,int8,adatopk", "--max-ratio", "20"]
    data = json.loads(call("plan", WORLD, "gpt3-xl", *lossy, "--json").stdout)
    assert data["plan"]["problem"]["constraints"]["max_ratio"] == 20
    assert "topk" in {rule["codec"]["name"] for rule in data["plan"]["link_codecs"]}
    assert {stage["reduce_codec"]["name"] for stage in data["plan"]["stages"]} <= {"none", "int8", "topk"}
    assert data["notes"][0].startswith("quality not modelled")
    at_once = ["--evaluations", "1"]
    assert "quality not modelled" in call("plan", WORLD, "gpt3-xl", *lossy, *at_once).stdout
    assert json.loads(call("plan", WORLD, "gpt3-xl", *shape, *at_once, "--json").stdout)["notes"] == []


def test_same_seed_and_evaluations_give_the_same_plan(call, tmp_path):
    one, two = (json.loads(plan_file(call, tmp_path).read_text()) for _ in range(2))
    for plan in (one, two):
        plan["provenance"].pop("seconds")
    assert one == two


def test_simulate_with_jitter_and_on_another_schedule(call, tmp_path):
    plan_file(call, tmp_path)
    jittered = ("--jitter", "0.1", "--seed", "1", "--runs", "5", "--json")
    data = json.loads(call("simulate", "plan.json", *jittered).stdout)
    spread = data["jitter"]
    assert spread["runs"] == len(spread["step_s"]) == 5
    assert spread["p05_s"] <= spread["median_s"] <= spread["p95_s"]
    assert data["step_s"] == pytest.approx(spread["step_s"][0], rel=1e-9)
    assert json.loads(call("simulate", "plan.json", *jittered).stdout) == data
    assert "5 runs with jitter, seed 1: median" in call("simulate", "plan.json", *jittered[:-1]).stdout
    done = call("simulate", "plan.json", "--schedule", "interleaved", "-o", "chunks.json", "--json")
    assert json.loads(done.stdout)["plan"] == "chunks.json", done.stderr
    written = json.loads((tmp_path / "chunks.json").read_text())
    assert written["schedule"] == "interleaved"
    assert len(written["stages"]) == 4
    assert "hetplanner.runtime.worker" in call("train", "chunks.json", "--dry-run").stdout
    failure(call("simulate", "plan.json", "--schedule", "other"), 2)
    failure(call("simulate", "plan.json", "--jitter", "9"), 2)


def test_the_objective_cost_speaks_of_dollars(call):
    options = ["--objective", "cost", "--evaluations", "2000"]
    text = call("plan", LAB, "tiny-gpt", *options).stdout
    assert "dollars go to: 1 x CPU generic 100%" in text
    assert "$ per million tokens, gap" in text
    data = json.loads(call("plan", LAB, "tiny-gpt", *options, "--json").stdout)
    assert sum(data["dollars"].values()) == pytest.approx(data["device_usd"] + data["egress_usd"])
    assert data["tokens_per_usd"] == pytest.approx(1e6 / data["usd_per_mtoken"])


def test_pareto_writes_plans_of_which_none_is_faster_and_cheaper(call, tmp_path):
    options = ["--evaluations", "5000", "-o", "front"]
    data = json.loads(call("pareto", LAB, "tiny-gpt", *options, "--json").stdout)
    files = [Path(point["plan"]) for point in data["points"]]
    assert [(tmp_path / file).is_file() for file in files] == [True] * len(files)
    assert files[0] == Path("front/plan-00.json")
    dollars = [point["usd_per_mtoken"] for point in data["points"]]
    assert dollars == sorted(dollars, reverse=True)
    assert {"step_s", "tokens_per_s", "tokens_per_usd", "stages", "devices"} <= data["points"][0].keys()
    assert json.loads(call("simulate", str(files[0]), "--json").stdout)["step_s"] > 0
    failure(call("pareto", LAB, "tiny-gpt", *options), 2)
    text = call("pareto", LAB, "tiny-gpt", "--evaluations", "5000").stdout
    assert "tokens/$" in text
    assert "no plan takes less than" in text


def test_simulate_json_and_trace(call, tmp_path):
    plan_file(call, tmp_path)
    said = call("simulate", "plan.json").stdout
    assert f"idle {percent_text(replay_step(load_plan(tmp_path / 'plan.json')).idle)}" in " ".join(said.split())
    data = json.loads(call("simulate", "plan.json", "--trace", "trace.json", "--json").stdout)
    assert {"step_s", "bubble", "terms", "per_rank"} <= data.keys()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_data_is_checked_before_anything_is_started(call, tmp_path):
    plan_file(call, tmp_path)
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    (tmp_path / "pictures" / "cats" / "1.png").touch()
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "a.txt").write_text("hello")
    told = {
        "nowhere": "nowhere is neither a file nor a folder",
        "pictures": "holds no text",
        "digits": "tiny-gpt does not read",
        "short": "short holds 5 tokens to train on",
    }
    for data, words in told.items():
        assert words in failure(call("train", "plan.json", "--data", data), 2)
    assert not (tmp_path / "home" / "agent").exists()


def test_several_connections_are_of_real_links_and_static_runs(call, tmp_path):
    plan_file(call, tmp_path)
    call("plan", LAB, "tiny-gpt", "--mode", "elastic", "--budget", "0.2s", "-o", "swarm.json")
    swarm = "connections: peers of a swarm have one to each other"
    refused = {
        ("plan.json", "--connections", "2", "--emulate-links"): "connections: emulated links have one each",
        ("plan.json", "--connections", "17"): "connections: must be less than or equal to 16, got 17",
        ("swarm.json", "--connections", "2", "--launcher", "ssh"): swarm,
        ("swarm.json", "--connections", "2"): swarm,
    }
    for argv, words in refused.items():
        assert words in failure(call("train", *argv, "--dry-run"), 2)
    assert call("train", "plan.json", "--connections", "2", "--dry-run").returncode == 0


def test_train_dry_run_prints_the_line_and_starts_nothing(call, tmp_path):
    plan_file(call, tmp_path)
    done = call("train", "plan.json", "--emulate-links", "--dry-run")
    assert "-m hetplanner.runtime.launch --rdzv-backend" in done.stdout
    assert "hetplanner.runtime.worker" in done.stdout
    assert not list((tmp_path / "home").glob("runs/*"))
    assert not (tmp_path / "home" / "agent").exists()


def test_rehearse_names_what_it_rehearses(call, tmp_path):
    plan_file(call, tmp_path)
    assert "rehearsal of" in call("rehearse", "plan.json", "--budget", "0.2s", "-o", "small.json").stdout
    assert json.loads((tmp_path / "small.json").read_text())["problem"]["rehearsal_of"]


def test_a_rehearsal_of_an_elastic_plan_is_a_swarm_under_its_rules(call, tmp_path):
    how = ["--mode", "elastic", "--rebalancing", "queue", "--delayed-updates"]
    call("plan", LAB, "tiny-gpt", *how, "--budget", "0.2s", "-o", "plan.json")
    shown = call("rehearse", "plan.json", "--stages", "2", "--replicas", "1", "--budget", "0.2s", "-o", "small.json")
    assert "rehearsal of" in shown.stdout
    assert "Stages at the start" in shown.stdout
    small = load_elastic_plan(tmp_path / "small.json")
    assert small.problem.rehearsal_of
    assert (small.rebalancing.policy, small.delayed_updates, len(small.stages)) == ("queue", True, 2)
    told = json.loads(call("rehearse", "plan.json", "--budget", "0.2s", "-o", "other.json", "--json").stdout)
    assert (told["mode"], told["step_s"]) == ("elastic", load_elastic_plan(tmp_path / "other.json").estimate.step_s)


def test_runs_list_of_a_new_home_is_empty(call):
    assert json.loads(call("runs", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster", "show", "nowhere.json"], ["nowhere.json", "no such file"]),
        (["plan", LAB, "gpt5"], ["gpt5"]),
        (["plan", LAB, "tiny-gpt", "--planner", "magic"], ["planner", "evolution"]),
        (["plan", LAB, "tiny-gpt", "--objective", "beauty"], ["objective"]),
        (["plan", LAB, "tiny-gpt", "--codecs", "zip"], ["codecs", "'adatopk' or 'powersgd'", "'zip'"]),
        (["plan", LAB, "tiny-gpt", "--codecs", "topk,adatopk"], ["codecs", "allow one of them"]),
        (["plan", LAB, "tiny-gpt", "--codecs", "adatopk", "--max-ratio", "0.5"], ["max_ratio", "0.5"]),
        (["plan", LAB, "tiny-gpt", "--codecs", "adatopk", "--max-ratio", "nan"], ["max_ratio", "finite"]),
        (["plan", LAB, "tiny-gpt", "--codecs", "adatopk", "--max-ratio", "much"], ["--max-ratio"]),
        (["plan", LAB, "tiny-gpt", "--budget", "5 parsecs"], ["budget"]),
        (["plan", LAB, "tiny-gpt", "--stages", "zero"], ["--stages"]),
        (["plan", LAB, "tiny-gpt", "--stages", "0"], ["stages"]),
        (["plan", LAB, "tiny-gpt", "--stages", "3", "--replicas", "3"], ["9", "4"]),
        (["plan", LAB, "tiny-gpt", "--stages", "500", "--replicas", "1"], ["stages"]),
        (["plan", LAB, "tiny-gpt", "--exclude", "nobody"], ["nobody"]),
        (["plan", LAB, "tiny-gpt", "--seq-len", "100000"], ["seq_len"]),
        (["simulate", LAB], ["format", "plan@2"]),
        (["train", LAB], ["format", "plan@2"]),
        (["runs", "show", "nothing"], ["nothing"]),
        (["runs", "sample", "nothing", "hello"], ["nothing"]),
        (["plan", LAB, "tiny-gpt", "-o", "no/such/folder/plan.json"], ["plan.json", "cannot be written"]),
        (["cluster", "convert", LAB, "-o", "no/such/folder/copy.json"], ["copy.json", "cannot be written"]),
        (["compare", LAB, "tiny-gpt", "--planners", "rank-order,magic"], ["planner", "magic", "rank-order"]),
        (["compare", LAB, "tiny-gpt", "--planners", "random,random"], ["random is there twice"]),
        (["compare", LAB, "tiny-gpt", "--seeds", "0"], ["--seeds"]),
        (["compare", LAB, "tiny-gpt", "--stages", "3", "--replicas", "3"], ["9", "4"]),
        (["compare", LAB, "tiny-gpt", "-o", "no/such/folder/rows.csv"], ["rows.csv", "cannot be written"]),
        (["cluster", "generate", "r11", "-o", "r11.json"], ["r11", "mixed-gpus"]),
        (["pareto", LAB, "tiny-gpt", "-o", "no/such/folder"], ["folder", "cannot be written"]),
        (["pareto", LAB, "tiny-gpt", "-o", LAB], ["lab_2_sites_4.json", "no folder"]),
        (["pareto", LAB, "tiny-gpt", "--budget", "-1 s"], ["budget"]),
        (["pareto", LAB, "tiny-gpt", "--stages", "3", "--replicas", "3"], ["9", "4"]),
        (["plam"], ["plam"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(call, arguments, words):
    line = failure(call(*arguments), 2)
    assert all(word in line for word in words), line


def test_a_model_that_fits_nowhere_is_infeasible(start):
    line = failure(start("plan", LAB, "llama-70b", "--stages", "2", "--replicas", "2", "--budget", "1s"), 3)
    assert "GB" in line


def test_a_trace_that_cannot_be_written_is_one_line(call, tmp_path):
    plan_file(call, tmp_path)
    failure(call("simulate", "plan.json", "--trace", "no/such/folder/trace.json"), 2)


def test_debug_shows_the_traceback(start):
    assert "Traceback" in start("--debug", "cluster", "show", "nowhere.json").stderr


def test_help_names_every_command(call):
    text = call("--help").stdout
    for command in ("plan", "simulate", "train", "runs", "agent", "dashboard", "cluster", "workload"):
        assert command in text


def test_calibrate_fits_the_cluster_to_a_trace(call, tmp_path):
    plan_file(call, tmp_path)
    slower = json.loads(Path(LAB).read_text())
    for device in slower["devices"]:
        device["efficiency"] = 0.2
    (tmp_path / "slower.json").write_text(json.dumps(slower))
    data = json.loads((tmp_path / "plan.json").read_text())
    for device in data["problem"]["cluster"]["devices"]:
        device["efficiency"] = 0.2
    (tmp_path / "true.json").write_text(json.dumps(data))
    assert call("simulate", "true.json", "--trace", "trace.json").returncode == 0
    arguments = ("calibrate", "trace.json", "--plan", "plan.json", "-o", "fitted.json", "--save", "fit.json")
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["format"] == "hetplanner/calibration@1"
    assert found["mean_error"]["after"] < 0.02
    assert found["checks"][0]["label"] == "step"
    assert all(kind["efficiency"] == pytest.approx(0.2, rel=0.02) for kind in found["kinds"])
    shown = call("cluster", "show", "fitted.json", "--json")
    used = {kind["kind"] for kind in found["kinds"]}
    devices = [d for d in json.loads(shown.stdout)["devices"] if d["kind"] in used]
    assert all(d["efficiency"] == pytest.approx(0.2, rel=0.02) for d in devices)
    words = call(*arguments)
    assert words.returncode == 0, words.stderr
    assert "Predicted against measured" in words.stdout
    assert "calibrated cluster written to fitted.json" in words.stdout


def test_calibrate_fits_the_cluster_to_a_table(call, tmp_path):
    plan = plan_file(call, tmp_path)
    step_s = json.loads(plan.read_text())["estimate"]["step_s"]
    (tmp_path / "steps.csv").write_text(f"plan,seconds\nplan.json,{2 * step_s}\n")
    done = call("calibrate", "--table", "steps.csv", "plan.json", "--fit", "bandwidth", "-o", "c.json", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["checks"][0]["measured_s"] == pytest.approx(2 * step_s)
    assert found["checks"][0]["after_s"] == pytest.approx(2 * step_s, rel=0.02)
    assert "measured" in (tmp_path / "c.json").read_text()


def test_calibrate_predicts_the_published_runs(call):
    done = call("calibrate", "--published", "dtfm", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mean_error"] <= 0.12
    assert found["wrong_orders"] == []
    assert len(found["rows"]) == 15


def test_calibrate_refuses_what_says_nothing(call, tmp_path):
    plan_file(call, tmp_path)
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "steps.csv").write_text("plan,seconds\nplan.json,-1\n")
    assert "holds no spans" in failure(call("calibrate", "trace.json", "--plan", "plan.json"), 2)
    assert "--plan" in failure(call("calibrate", "trace.json"), 2)
    assert "no such run" in failure(call("calibrate", "never-ran"), 2)
    assert "give one run or trace file" in failure(call("calibrate"), 2)
    assert "line 2: seconds" in failure(call("calibrate", "--table", "steps.csv", "plan.json"), 2)
    assert "known is dtfm" in failure(call("calibrate", "--published", "swarm"), 2)
