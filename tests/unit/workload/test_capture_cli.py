"""Capture from the command line: in a process of its own, from a user's folder, into a file that needs no code."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hetplanner.errors import InvalidInput
from hetplanner.workload.capturing.capture import capture_config, capture_model_code
from hetplanner.workload.files import load_workload_file, save_workload, workload_from_json, workload_to_data
from hetplanner.workload.load import load_workload
from hetplanner.workload.presets import preset
from tests.support.models.captured_models import GPT2, RESNET, captured_here
from tests.support.processes.patience import HANG_S

NETS = """
import torch
from torch import nn

def good():
    print("noise on standard output")
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.zeros(4, 8)

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        return y

class Item(Branch):
    def forward(self, x):
        return self.linear(x) * self.linear(x).sum().item()

class InPlace(Branch):
    def forward(self, x):
        y = self.linear(x)
        y[:, 0] += 1
        return y

class State(Branch):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        y = self.linear(x)
        self.mean.mul_(0.9)
        return y - self.mean

class Large(Branch):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.arange(360_000.0).view(600, 600))
    def forward(self, x):
        return self.linear(x) * self.mask.sum()

class Orthogonal(Branch):
    def __init__(self):
        super().__init__()
        nn.init.orthogonal_(self.linear.weight)
    def forward(self, x):
        return self.linear(x)

class Mean(Branch):
    def forward(self, x):
        return self.linear(x).mean()

def branch(): return Branch(), torch.zeros(4, 8)
def item(): return Item(), torch.zeros(4, 8)
def in_place(): return InPlace(), torch.zeros(4, 8)
def state(): return State(), torch.zeros(4, 8)
def large(): return Large(), torch.zeros(4, 8)
def orthogonal(): return Orthogonal(), torch.zeros(4, 8)
def mean(): return Mean(), torch.zeros(4, 8)
def shapes(): return Branch(), torch.zeros(4, 9)
def forever():
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open("draft", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename("draft", "pids")
    time.sleep(1000)
def crash(): return undefined_name
def alone(): return Branch()
def uneven(): return Branch(), (torch.zeros(4, 8), torch.zeros(3))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "hetplanner.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def test_torch_keeps_nothing_under_a_name_that_others_can_foresee(folder, monkeypatch):
    (folder / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    assert command("workload", "capture", "--model-code", "mine.nets:good", "-o", "good.json").returncode == 0
    assert list((folder / "temporary").iterdir()) == []


@pytest.fixture
def own_process(folder, monkeypatch):
    """Captures in this process, which finds the folder's code and forgets it afterwards."""
    monkeypatch.syspath_prepend(folder)
    with captured_here():
        yield
    for name in ("mine.nets", "mine"):
        sys.modules.pop(name, None)


REFUSALS = [
    ("branch", ["nets.py:15 (forward)", "_local_scalar_dense", "torch.where"]),
    ("item", ["nets.py:21 (forward)", "no .item()"]),
    ("in_place", ["nets.py:26 (forward)", "aten.add_.Tensor", "without in-place calls"]),
    ("state", ["nets.py:35 (forward)", "buffer mean", "keep other state out"]),
    ("large", ["buffer mask [600, 600]", "at most 262144", "compute it in forward"]),
    ("orthogonal", ["parameter linear.weight [4, 8]", "torch.nn.init"]),
    ("mean", ["must return logits [batch, ..., classes], got []"]),
    ("shapes", ["nets.py:14 (forward)"]),
    ("crash", ["nets.py:71 (crash)", "undefined_name"]),
    ("alone", ["returned Branch", "(module, example_inputs)"]),
    ("uneven", ["equally many samples, got 4 and 3"]),
    ("nothing", ["mine.nets has no function nothing"]),
]


@pytest.mark.parametrize(("factory", "says"), REFUSALS)
def test_refusals_name_the_line_and_the_remedy(own_process, factory, says):
    refused(factory, says)


def test_a_child_hands_its_refusal_on(folder):
    refused(*REFUSALS[0])


def refused(factory, says):
    with pytest.raises(InvalidInput) as caught:
        capture_model_code(f"mine.nets:{factory}")
    text = str(caught.value)
    assert text.isprintable()
    for part in says:
        assert part in text


@pytest.mark.parametrize("target", ["mine.nets", "mine/nets.py:good", "mine.nets:good()", ":good", "absent.nets:good"])
def test_targets_that_are_none(folder, target):
    with pytest.raises(InvalidInput, match="--model-code"):
        capture_model_code(target)


def test_a_users_factory_is_captured_shown_and_planned_without_its_code(folder):
    done = command("workload", "capture", "--model-code", "mine.nets:good", "--micro-batch", "8", "-o", "net.json")
    assert done.returncode == 0, done.stderr
    workload = load_workload_file("net.json")
    assert workload.provenance.startswith("captured from mine.nets:good (nets.py sha256 ")
    assert (workload.micro_batch, workload.program.inputs) == (8, (8, 8))
    (folder / "mine" / "nets.py").unlink()
    shown = json.loads(command("workload", "show", "net.json", "--json").stdout)
    assert (shown["num_params"], shown["trainable"], len(shown["ops"])) == (212, True, 4)
    assert load_workload("net.json", global_batch=32).num_micro_batches == 4


def test_plan_takes_a_users_factory(folder):
    cluster = str(Path(__file__).parents[3] / "sample_clusters" / "lab_2_sites_4.json")
    done = command("plan", cluster, "--model-code", "mine.nets:good", "--evaluations", "0", "--json")
    assert done.returncode == 0, done.stderr
    workload = json.loads(done.stdout)["plan"]["problem"]["workload"]
    assert workload["provenance"].startswith("captured from mine.nets:good")
    assert workload["program"]["loss"] == "cross_entropy_loss"


def test_show_prints_and_draws_the_graph(folder):
    done = command("workload", "show", "--model-code", "mine.nets:good", "--plot", "graph.html")
    assert done.returncode == 0, done.stderr
    assert "212 parameters, 4 operators" in done.stdout
    assert "Bokeh" in (folder / "graph.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show"], "exactly one of MODEL and --model-code"),
        (["show", "gpt2", "--model-code", "mine.nets:good"], "exactly one of MODEL and --model-code"),
        (["capture", "-o", "x.json"], "exactly one of CONFIG and --model-code"),
        (["capture", "--model-code", "mine.nets:good"], "-o"),
        (["capture", "--model-code", "mine.nets:branch", "-o", "x.json"], "nets.py:15"),
        (["show", "--model-code", "mine.nets:good", "--layers", "3"], "layers: cannot be changed"),
        (["capture", "nowhere.json", "-o", "x.json"], "nowhere.json: no such file"),
    ],
)
def test_bad_commands_end_with_one_line_and_exit_2(folder, arguments, says):
    done = command("workload", *arguments)
    assert done.returncode == 2
    told = [line for line in done.stderr.strip().splitlines() if not line.startswith("capturing, ")]
    assert len(told) == 1
    assert says in done.stderr


def pids_of(folder):
    return [int(pid) for pid in (folder / "pids").read_text().split()] if (folder / "pids").exists() else []


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended(pids):
    """Waits until these processes are gone; a minute means that somebody forgot them."""
    for _ in range(600):
        if not any(map(lives, pids)):
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_ends_a_capture_and_all_that_it_started(folder):
    phases = []

    def interrupt(spent_s, doing):
        phases.append(doing)
        if pids_of(folder):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_model_code("mine.nets:forever", timeout_s=300, on_progress=interrupt)
    assert phases[0] == "loading torch"
    assert len(pids_of(folder)) == 2
    assert ended(pids_of(folder))


def test_a_capture_ends_at_its_limit_with_the_remedy(folder):
    with pytest.raises(InvalidInput, match=r"given up after 0\.5 s while .*; give it more time .*--capture-timeout"):
        capture_model_code("mine.nets:forever", timeout_s=0.5)
    done = command("workload", "capture", "--model-code", "mine.nets:forever", "-o", "x.json", "--capture-timeout", "1")
    assert (done.returncode, "given up after 1 s" in done.stderr) == (2, True)
    assert ended(pids_of(folder))


def test_a_capture_ends_with_whoever_asked_for_it(folder):
    code = "from hetplanner.workload.capturing.capture import capture_model_code as c; c('mine.nets:forever')"
    temporary = folder / "temporary"
    temporary.mkdir()
    asker = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(temporary)})
    try:
        for _ in range(600):
            if pids_of(folder):
                break
            time.sleep(0.1)
        assert len(pids_of(folder)) == 2
    finally:
        asker.kill()
        asker.wait()
    assert ended(pids_of(folder))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer", "num_layers"])
def test_a_config_of_too_many_layers_is_refused_before_anything_starts(tmp_path, name):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", name: 20_000}))
    with pytest.raises(InvalidInput, match=f"config.json: {name}: must be at most 1000 to be captured, got 20000"):
        load_workload(str(config))


def test_configs_of_other_families_are_captured(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(RESNET))
    workload = load_workload(str(config), micro_batch=2, dtype="bfloat16")
    assert (workload.micro_batch, workload.seq_len, workload.dtype) == (2, 1, "bfloat16")
    assert "model_type resnet" in workload.provenance
    config.write_text(json.dumps(GPT2 | {"activation_function": "relu"}))
    with pytest.raises(InvalidInput, match="hetplanner workload capture"):
        load_workload(str(config))
    assert capture_config(config, seq_len=16).graph.num_params == 34_688


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "no-such-family"}, "model_type: must be one that this transformers"),
        ({"model_type": "resnet", "hidden_sizes": "wide"}, "config.json"),
        ({"model_type": "clap"}, "no language model or image classifier"),
    ],
)
def test_configs_that_cannot_be_captured(tmp_path, fields, says):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(fields))
    with captured_here(), pytest.raises(InvalidInput) as caught:
        load_workload(str(config))
    assert says in str(caught.value)


def test_without_transformers_the_remedy_is_named(tmp_path, monkeypatch):
    (tmp_path / "transformers.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(RESNET))
    with pytest.raises(InvalidInput, match=r"pip install 'hetplanner\[hf\]'"):
        capture_config(config)


def test_files_are_validated(tmp_path):
    workload = preset("tiny-resnet")
    save_workload(workload, tmp_path / "w.json")
    assert load_workload_file(tmp_path / "w.json") == workload
    data = workload_to_data(workload)
    assert data["format"] == "hetplanner/workload@1"

    def refused(change):
        broken = json.loads(json.dumps(data))
        change(broken)
        with pytest.raises(InvalidInput) as caught:
            workload_from_json(json.dumps(broken), "w.json")
        assert str(caught.value).isprintable()
        return str(caught.value)

    nodes = data["program"]["nodes"]
    last = next(i for i, n in enumerate(nodes) if n["op"] == data["captured"]["ops"][3]["name"])
    assert "newer than this" in refused(lambda d: d.update(format="hetplanner/workload@2"))
    assert "micro_batch must be 8" in refused(lambda d: d.update(micro_batch=4))
    assert "is not in the graph" in refused(lambda d: d["program"]["nodes"][last].update(op="elsewhere"))
    assert "must not depend on weights" in refused(lambda d: d["program"]["nodes"][0].update(op=None))
    assert "must name every op" in refused(lambda d: d["program"]["outputs"].popitem())
    assert "not there before" in refused(lambda d: d["program"]["nodes"][0]["args"].append({"node": "later"}))
    assert "loss" in refused(lambda d: d["program"].update(loss=nodes[0]["name"]))
    first = next(iter(data["program"]["parameters"]))
    assert "init" in refused(lambda d: d["program"]["parameters"][first]["init"][0].update(call="__reduce__"))


def test_a_graph_alone_can_be_planned_at_any_micro_batch(tmp_path):
    data = workload_to_data(preset("tiny-resnet"))
    del data["program"]
    (tmp_path / "graph.json").write_text(json.dumps(data))
    workload = load_workload(str(tmp_path / "graph.json"), micro_batch=2)
    assert (workload.program, workload.micro_batch) == (None, 2)
