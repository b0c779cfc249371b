"""Hostile files and values through every entry of the page: each is one line beside its field, and nothing is lost."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hetplanner.cluster.formats.cluster_files import cluster_to_json
from hetplanner.plan.files.plan_files import plan_to_data
from hetplanner.ui.jobs.jobs import SearchService
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.workload.files import workload_to_data
from tests.support.files.hostile import NAMES, hostile_cluster, hostile_plan
from tests.support.plans.factories import chain_plan, small_cluster

SAMPLES = Path(__file__).parents[4] / "sample_clusters"


class Bomb:
    """Runs something where it is unpickled."""

    def __reduce__(self):
        return eval, ("__import__('os').abort()",)


def npy(shape: tuple, *, descr: str = "<f8", body: bytes = b"") -> bytes:
    header = str({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + body


def pickled() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([Bomb()], dtype=object), allow_pickle=True)
    return out.getvalue()


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("bandwidth.npy", b"\0" * 50_000_000)
    return out.getvalue()


def changed(data: object, *path: object, value: object) -> bytes:
    """The data as JSON with another value at a place."""
    data = json.loads(json.dumps(data))
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(data).encode()


CLUSTER = json.loads(cluster_to_json(small_cluster(3)))
PLAN = plan_to_data(chain_plan(shares=(1, 1), cuts=(4,)))
WORKLOAD = workload_to_data(chain_plan(shares=(1, 1), cuts=(4,)).problem.workload)
GPT2 = {"model_type": "gpt2", "vocab_size": 10, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 1}
FILES = {
    "nothing": b"",
    "zeros": b"\0" * 1000,
    "no text": b"\xff\xfe\xfd",
    "an open bracket, often": b"[" * 100_000,
    "nested deeply": b"[" * 5000 + b"]" * 5000,
    "objects nested deeply": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a million devices": b'{"format":"hetplanner/cluster@1","devices":[' + b"{}," * 1_000_000 + b"{}]}",
    "a number of a million digits": b'{"format":"hetplanner/cluster@1","name":' + b"9" * 1_000_000 + b"}",
    "not a number": b'{"format":"hetplanner/plan@1","x":NaN}',
    "given twice": b'{"format":"hetplanner/plan@1","format":"hetplanner/cluster@1"}',
    "of another kind": b'{"format":"hetplanner/__import__(os)@1"}',
    "of the far future": b'{"format":"hetplanner/cluster@99999"}',
    "a cluster that names code": changed(CLUSTER, "import", value="os:system"),
    "a memory of 1e308": changed(CLUSTER, "devices", 0, "memory", value="1e308 GiB"),
    "a latitude of 1e308": changed(CLUSTER, "sites", 0, "latitude", value=1e308),
    "a bandwidth of 1e308": changed(CLUSTER, "site_links", 0, "bandwidth", value="1e308 Gbit/s"),
    "a name with a line break": changed(CLUSTER, "sites", 0, "name", value="a\n$(reboot)\x1b[2J"),
    "a name without end": changed(CLUSTER, "devices", 0, "id", value="x" * 10**6),
    "a plan that names code": changed(PLAN, "launcher", value="os:system"),
    "a plan whose planner is code": changed(PLAN, "provenance", value={"planner": "os:system", "code": "os"}),
    "a plan of a file": changed(PLAN, "problem", "cluster", value="/etc/passwd"),
    "a plan of 1e308 in flight": changed(PLAN, "stages", 0, "in_flight", value=1e308),
    "a plan on devices that are not there": changed(PLAN, "ranks", 0, value="../../etc/passwd"),
    "a workload that names code": changed(WORKLOAD, "factory", value="os:system"),
    "a workload of 1e308": changed(WORKLOAD, "global_batch", value=1e308),
    "a model of others' code": b'{"model_type":"gpt2","auto_map":{"AutoModel":"evil.Model"}}',
    "a model of a trillion layers": changed(GPT2, "n_layer", value=10**12),
    "a model without width": changed(GPT2, "n_embd", value=0),
    "a model of hostile width": changed(GPT2, "n_embd", value=1e308),
    "pickle": pickle.dumps(Bomb()),
    "pickled in npy": pickled(),
    "npy of an exabyte": npy((10**9, 10**9)),
    "npy of negative size": npy((-1, -1)),
    "npy of objects": npy((1, 1), descr="|O", body=pickle.dumps(Bomb())),
    "npy whose header runs": npy((2, 2), descr="__import__('os').abort()"),
    "npy with a huge header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"x" * 100,
    "npy cut short": npy((2, 2)),
    "a bomb in an archive": archive(),
    "a table of formulas": b",a,b\na,,=cmd|' /C calc'!A0\nb,=1+1,\n",
    "a table without end": b"1," * 2_000_000,
    "a table of 1e308": b",a,b\na,,1e308\nb,1e308,\n",
}  # fmt: skip
NAMES_OF_FILES = ("x.json", "bandwidth.npy", "bandwidth.csv", "../../etc/passwd.json", NAMES[0] + ".json")


@pytest.fixture
def app(tmp_path):
    return PlannerApp(LaunchGuard("TEST-LAUNCH-TOKEN"), SearchService(), SAMPLES, tmp_path)


def state(app: PlannerApp) -> tuple:
    return app.cluster.cluster, app.session.plan, app.plan.preset, app.plan.uploaded, app.session.unlocked


def said(app: PlannerApp) -> list[str]:
    """Everything that the page says is wrong, and takes it back."""
    texts = [text for kind, text in app.session.notices if kind == "error"]
    texts += [str(text) for text in app.exchange.errors.values()] + ([app.export.error] if app.export.error else [])
    app.session.notices.clear()
    app.exchange.errors, app.export.error = {}, ""
    return texts


@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_file_is_refused_in_a_line_at_every_entry(app, kind, tmp_path):
    before = state(app)
    content = FILES[kind]
    for name in NAMES_OF_FILES:
        for give in (
            lambda n, c: app.exchange.take_files({n: c}),
            lambda n, c: app.exchange.take_files({n: c, "latency.npy": c}),
            app.plan.upload_model,
            app.export.upload,
        ):
            give(name, content)
            texts = said(app)
            assert texts, f"{name} was taken"
            assert all(text.isprintable() and len(text) <= 2000 for text in texts)
            assert state(app) == before
    assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize("text", [*NAMES, "", "x" * 10**7, "[" * 10**5, "$(reboot)", "../../etc/passwd", "1e308,1e308"])
def test_hostile_pasted_text_is_refused_in_a_line(app, text):
    before = state(app)
    app.exchange.take_text(text)
    texts = said(app)
    assert texts
    assert all(line.isprintable() and len(line) <= 2000 for line in texts)
    assert state(app) == before


@pytest.mark.parametrize("value", [*NAMES, "", "../../etc/passwd", "\0", "%00", "x" * 120, "20260101-000000-x-0000"])
def test_a_hostile_address_chooses_nothing(app, value):
    before = state(app)
    app.restore(value, value, value, value)
    assert state(app) == before
    assert app.session.page == "cluster"
    assert app.run.selected == ""


def test_names_that_would_be_markup_are_taken_as_names(app):
    app.exchange.take_files({"x.json": cluster_to_json(hostile_cluster()).encode()})
    assert said(app) == []
    assert app.cluster.cluster == hostile_cluster()
    app.export.upload("x.json", json.dumps(plan_to_data(hostile_plan())).encode())
    assert said(app) == []
    assert app.session.plan.problem.workload.name == hostile_plan().problem.workload.name


def test_nothing_of_the_page_unlocks_it(app):
    """Whatever a page can set is checked where it is used: the lock opens for the token alone."""
    for guess in ("", "TEST-LAUNCH-TOKE", "TEST-LAUNCH-TOKENS", "\0", "x" * 10**6, *NAMES):
        assert not app.session.unlock(guess)
    assert not app.session.unlocked
    assert app.session.unlock("TEST-LAUNCH-TOKEN")  # however many wrong ones came before
