"""Measuring hosts from the Cluster page: who may start it, what is shown meanwhile, and what becomes of the numbers."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hetplanner.cluster.model import Cluster
from hetplanner.errors import RunError
from hetplanner.hosts.probe import measuring
from hetplanner.hosts.probe.measuring import Job
from hetplanner.hosts.probe.pace import Pace, left_text
from hetplanner.hosts.probe.record import (
    ProbedDevice,
    ProbedLink,
    ProbedTogether,
    Record,
    load_record,
    save_record,
)
from hetplanner.ui.cluster.models.drafts import Step
from hetplanner.ui.cluster.models.probe_rows import MOST_LINKS, probe_rows
from hetplanner.ui.cluster.views.map import MapView
from hetplanner.ui.cluster.views.probe import ProbePart
from hetplanner.ui.jobs import probe_jobs
from hetplanner.ui.jobs.probe_jobs import ProbeJobs, ProbeRequest, cluster_key
from hetplanner.ui.jobs.probe_worker import Worker
from hetplanner.ui.security.access import LaunchGuard
from hetplanner.ui.shell.models.app import PlannerApp
from hetplanner.ui.shell.models.texts import without_paths
from hetplanner.ui.shell.views.unlock import Unlock
from hetplanner.ui.widgets.cards import is_shown
from tests.support.files.hostile import IMG, MARKUP, hostile_cluster
from tests.support.plans.factories import sites_cluster
from tests.support.processes.patience import until
from tests.unit.ui.shell.test_ui_models import SAMPLES, TOKEN, FakeService

FAKE = Path(__file__).resolve().parents[3] / "support/pages/fake_probe.py"
LAB = sites_cluster([2, 1])
PAIRS = [("h0-0", "h0-1"), ("h0-0", "h1-0"), ("h0-1", "h1-0")]


def link(start: str, end: str, rate: float = 5e7) -> ProbedLink:
    return ProbedLink(
        from_host=start, to_host=end, latency_s=0.02, latency_spread_s=0.001, bytes_per_s=rate,
        several_bytes_per_s=rate, streams=4,
    )  # fmt: skip


def record_of(cluster: Cluster = LAB, **fields: Any) -> Record:
    return Record(cluster=cluster.name, hosts=tuple(host.id for host in cluster.hosts), begun_unix_s=1.7e9, **fields)


LINKS = record_of(links=tuple(link(*ends) for pair in PAIRS for ends in (pair, pair[::-1])))
"""Every pair, both ways, the one inside a site first."""
FIRST = LINKS.replace(links=LINKS.links[:2])


class Bench:
    """A home, the fake probe of its pages, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "fake"
        self.folder.mkdir()
        self.home.mkdir(mode=0o700)
        self.started = 0
        self._said = 0
        self.jobs = ProbeJobs(self.home, [sys.executable, "-I", "-S", str(FAKE), str(self.folder)])
        self.offer("lab")

    def offer(self, *names: str, text: str = "") -> None:
        lines = "".join(f'{name} = "/secret/place/{name}-hosts.toml"\n' for name in names)
        (self.home / "agent.toml").write_text(text or f"[hosts]\n{lines}")
        (self.home / "agent.toml").chmod(0o600)

    def page(self, cluster: Cluster | None = LAB, *, unlocked: bool = True) -> PlannerApp:
        app = PlannerApp(LaunchGuard(TOKEN), FakeService(), SAMPLES, self.home, probes=self.jobs)
        if cluster is not None:
            app.cluster.editor.apply(cluster, "drawn")
        app.session.unlocked = unlocked
        app.probe.poll()
        return app

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("request-*.json"))]

    def begun(self) -> dict[str, Any]:
        """The request of the next probe, once the fake has read it."""
        until((self.folder / f"request-{self.started}.json").exists)
        self.started, self._said = self.started + 1, 0
        return self.requests()[-1]

    def say(self, text: str) -> None:
        line = self.folder / f"{self.started - 1}-{self._said}"
        line.with_name("new").write_text(text)
        line.with_name("new").rename(line)
        self._said += 1

    def round(
        self, record: Record, done: int, total: int = 4, words: str = "links", left_s: float | None = None
    ) -> None:
        save_record(record, Path(self.requests()[-1]["record"]))
        self.say(json.dumps({"type": "round", "done": done, "total": total, "words": words, "left_s": left_s}))

    def end(self) -> None:
        self.say(json.dumps({"type": "end"}))

    def fail(self, text: str) -> None:
        self.say(json.dumps({"type": "error", "text": text}))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.jobs.close()


def shows(app: PlannerApp, condition: Callable[[], object]) -> None:
    """Until a page, which polls, shows something."""

    def there() -> object:
        app.probe.poll()
        return condition()

    until(there, lambda: (app.probe.state_text, app.probe.error_text))
    app.probe.poll()  # what came while it was asked is drawn, too


def ends(app: PlannerApp, state: str) -> None:
    shows(app, lambda: app.probe.job is not None and app.probe.job.state == state)


def press(part: ProbePart, name: str, **values: Any) -> None:
    part.controls._handle_msg({"name": name, "values": values})


def labels(part: ProbePart) -> list[str]:
    return [item["label"] for item in part.controls.items if item["kind"] == "button"]


# -- from the start to the cluster ----------------------------------------------------------------


def test_the_map_and_the_table_fill_in_and_one_click_takes_the_numbers(bench):
    app = bench.page()
    world, part = MapView(app), ProbePart(app)
    press(part, "only", only="links")
    press(part, "start")
    assert app.probe.state_text == "Connecting to 3 hosts …"
    assert labels(part) == ["Cancel"]
    request = bench.begun()
    assert (request["hosts"], request["only"], request["all_pairs"], request["anew"]) == ("lab", "links", False, False)
    bench.round(record_of(), 0)
    shows(app, lambda: app.probe.state_text == "Round 1 of 4: links.")
    assert not is_shown(part.found)
    bench.round(FIRST, 1, left_s=21.0)
    shows(app, lambda: app.probe.state_text == "Round 2 of 4: links; about 25 s left.")
    assert app.probe.share == 0.25
    assert app.probe.preview.link("d0", "d1").bandwidth == 5e7
    assert app.cluster.cluster == LAB
    assert world.map.line_source.data["source"] == ["assumed"]
    table = part.found.object
    assert "<td" in table
    assert all(text in table for text in ("h0-0", "400 Mbit/s", "20 ms"))
    assert "h1-0" not in table
    together = ProbedTogether(
        host="h0-0", way="out", connections=2, one_by_one_bytes_per_s=1e8, together_bytes_per_s=5e7
    )
    bench.round(LINKS.replace(together=(together,)), 4, words="")
    bench.end()
    ends(app, "done")
    assert world.map.line_source.data["source"] == ["measured"]
    assert "h0-0: 2 connections at once carry 400 Mbit/s" in part.found.object
    assert "h0-0 → h0-1: latency is 20 ms, the cluster file says 1 ms" in part.found.object
    assert labels(part) == ["Measure anew", "Use the measured cluster"]
    assert app.cluster.cluster == LAB
    before = part.found.object
    press(part, "use")
    assert app.cluster.cluster.link("d0", "d1").latency == 0.02
    assert app.cluster.cluster.host_of("d0").nic_out == 5e7
    assert app.cluster.editor.undo_words == "measured hosts: 6 links"
    assert "The cluster uses these numbers" in app.probe.state_text
    assert labels(part) == ["Measure anew"]
    assert part.found.object == before
    assert app.probe.preview is None
    app.cluster.editor.undo()
    assert app.cluster.cluster == LAB
    assert "The cluster is as it was before" in app.probe.state_text


def test_devices_stand_beside_what_the_cluster_says():
    found = ProbedDevice(
        device="d0", name=IMG, flops_per_s={"float32": 2e12}, efficiency=0.4, memory_bandwidth_bytes_per_s=1e11,
        memory_bytes=8e9,
    )  # fmt: skip
    rows = probe_rows(LAB, record_of(devices=(found,)))
    assert rows.devices[0][:3] == ("d0", IMG, "float32 2 TFLOP/s")
    assert rows.devices[0][4:6] == ("40%", "8 GB")
    many = record_of(links=tuple(link("h0-0", "h0-1") for _ in range(MOST_LINKS + 7)))
    assert probe_rows(LAB, many).more.startswith("Not shown: 7 more links")


# -- cancelling and going on ----------------------------------------------------------------------


def test_cancel_works_while_it_connects_and_while_it_measures_and_start_goes_on(bench):
    app = bench.page()
    part = ProbePart(app)
    app.probe.start()
    bench.begun()
    press(part, "cancel")
    ends(app, "stopped")
    assert app.probe.state_text == "Cancelled before anything was measured."
    assert labels(part) == ["Start"]
    app.probe.start()
    bench.begun()
    bench.round(FIRST, 1)
    shows(app, lambda: app.probe.has_numbers)
    press(part, "cancel")
    ends(app, "stopped")
    assert app.probe.state_text.startswith("Cancelled. Measured: 2 links, begun 2023-11-14 22:13 UTC.")
    assert labels(part) == ["Go on", "Measure anew", "Use the measured cluster"]
    press(part, "start")
    assert not bench.begun()["anew"]
    assert app.probe.has_numbers, "what was measured before stays in sight"
    app.probe.cancel()
    ends(app, "stopped")
    press(part, "anew")
    assert bench.begun()["anew"]
    shows(app, lambda: not app.probe.has_numbers)
    assert len({request["record"] for request in bench.requests()}) == 1


def test_another_server_goes_on_from_what_was_kept(bench):
    app = bench.page()
    app.probe.start()
    bench.begun()
    bench.round(FIRST, 1)
    shows(app, lambda: app.probe.has_numbers)
    app.probe.cancel()
    ends(app, "stopped")
    bench.jobs = ProbeJobs(bench.home)
    later = bench.page()
    part = ProbePart(later)
    shows(later, lambda: later.probe.has_numbers)
    assert later.probe.preview is None, "the map shows it only if it is asked to"
    press(part, "on_map", on_map=True)
    assert later.probe.preview is not None
    assert labels(part) == ["Go on", "Measure anew", "Use the measured cluster"]
    later.cluster.editor.apply(sites_cluster([3, 1]), "drawn")
    shows(later, lambda: not later.probe.has_numbers)
    later.cluster.editor.apply(LAB, "drawn")
    shows(later, lambda: later.probe.has_numbers)
    next(bench.home.joinpath("probes").glob("*.json")).write_text("{")
    assert bench.page().probe.record is None, "what is damaged is as if it were not there"


def test_a_probe_that_does_not_end_is_killed(bench, monkeypatch):
    monkeypatch.setattr(probe_jobs, "STOP_GRACE_S", 0.05)
    (bench.folder / "stubborn").touch()
    app = bench.page()
    app.probe.start()
    bench.begun()
    app.probe.cancel()
    assert app.probe.state_text in ("Cancelling …", "Cancelled before anything was measured.")
    ends(app, "stopped")


# -- several pages --------------------------------------------------------------------------------


def test_every_page_sees_the_probe_and_only_one_goes_on(bench):
    bench.offer("lab", "other")
    one = bench.page()
    one.probe.hosts = "other"
    one.probe.start()
    bench.begun()
    bench.round(FIRST, 1)
    two, other = bench.page(), bench.page(sites_cluster([4]))
    shows(two, lambda: two.probe.has_numbers)
    assert (two.probe.hosts, two.probe.on_map) == ("other", True)
    two.probe.on_map = False
    bench.round(LINKS, 2)
    shows(two, lambda: len(two.probe.record.links) == 6)
    assert two.probe.preview is None
    shows(other, lambda: "is being measured with other: round 3 of 4" in other.probe.state_text)
    assert other.probe.preview is None
    other.probe.start()
    assert other.probe.error == f"probe: {LAB.name} is being measured; wait, or cancel that first"
    part = ProbePart(other)
    assert labels(part) == ["Cancel"]
    press(part, "cancel")
    ends(one, "stopped")
    shows(other, lambda: labels(part) == ["Start"])
    reloaded = bench.page()
    assert (reloaded.probe.hosts, len(reloaded.probe.record.links), reloaded.probe.preview) == ("other", 6, None)


def test_numbers_of_other_hosts_are_not_taken(bench):
    app = bench.page()
    app.probe.start()
    bench.begun()
    bench.round(LINKS, 4)
    bench.end()
    ends(app, "done")
    bigger = sites_cluster([2, 2])
    app.cluster.editor._draft.push(Step(bigger))  # by another page
    app.probe.use()
    assert "no longer has the sites, hosts and devices that were measured" in app.probe.error_text
    app.cluster.sync()
    assert app.cluster.cluster == bigger
    app.probe.poll()
    assert (app.probe.has_numbers, app.probe.error_text) == (False, "")


def test_a_renamed_or_moved_cluster_keeps_its_measurements():
    moved = LAB.replace(name="other", sites=tuple(site.replace(latitude=1.0) for site in LAB.sites))
    assert cluster_key(moved) == cluster_key(LAB)
    assert cluster_key(sites_cluster([1, 2])) != cluster_key(LAB)


# -- refusals -------------------------------------------------------------------------------------


def test_it_is_locked_until_the_token_is_typed(bench):
    app = bench.page(unlocked=False)
    part = ProbePart(app)
    assert part.lock.parts == [part.unlock.view]
    press(part, "start")
    assert app.probe.error_text == "measure: type the launch token first; it is printed in the server's terminal"
    assert bench.jobs.job is None
    part.unlock.token.value = "wrong-token-here"
    press(part, "start")
    assert bench.jobs.job is None
    part.unlock.token.value = TOKEN
    press(part, "start")
    assert bench.jobs.job is not None
    assert app.probe.error_text == ""
    assert part.lock.parts == []
    bench.begun()
    locked = bench.page(unlocked=False)
    locked.probe.cancel()
    assert locked.probe.error.startswith("cancel: type the launch token first")
    assert not app.probe.job.ended
    Unlock(locked.session).take()
    assert not locked.session.unlocked


def test_without_an_offer_the_card_says_how_to_make_one(bench):
    (bench.home / "agent.toml").unlink()
    app = bench.page()
    part = ProbePart(app)
    assert "name it in agent.toml under [hosts]" in app.probe.state_text
    assert labels(part) == []
    app.probe.start()
    assert "offers no hosts file" in app.probe.error
    bench.offer("lab")
    app.probe._due_s = 0.0
    app.probe.poll()
    assert (app.probe.hosts, labels(part)) == ("lab", ["Start"])
    app.probe.hosts = "/etc/passwd"
    app.probe.start()
    assert "offers no hosts file" in app.probe.error
    bench.offer(text="[hosts\n")
    app.probe._due_s = 0.0
    app.probe.poll()
    assert app.probe.error_text.startswith("agent.toml: not TOML")
    assert bench.jobs.job is None


def test_messages_of_any_shape_choose_nothing_that_is_not_offered(bench):
    app = bench.page()
    part = ProbePart(app)
    for name, value in (("hosts", "../other"), ("hosts", "/tmp/x"), ("only", "nics"), ("only", True), ("start", {})):
        part.controls._handle_msg({"name": name if name != "start" else "none", "values": {name: value}})
    for message in (None, [], {"name": "hosts"}, {"name": "use", "values": {}}, {"name": "cancel", "values": {}}):
        part.controls._handle_msg(message)
    assert (app.probe.hosts, app.probe.only, bench.jobs.job) == ("lab", "all", None)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("hosts: a problem on 1 host, nothing was started. [b] cannot be reached: timed out; try `ssh b true`",) * 2,
        ("hosts.x00: the cluster has no such host; did you mean 'x0'?",) * 2,
        ("/home/me/lab.toml: no such file; correct it", "lab.toml: no such file; correct it"),
        ("/opt/venv/bin/python has no hetplanner", "python has no hetplanner"),
    ],
)
def test_what_fails_is_told_without_paths_and_the_cluster_stays(bench, said, shown):
    app = bench.page()
    app.probe.start()
    bench.begun()
    bench.fail(said)
    ends(app, "failed")
    assert app.probe.error_text == shown
    assert (app.cluster.cluster, app.probe.preview) == (LAB, None)
    assert not app.probe.busy
    app.probe.start()
    assert app.probe.error_text == ""


def test_a_process_that_dies_or_says_nonsense_is_told(bench):
    app = bench.page()
    for words, told in (("die", "not understood"), ("[]", "not understood"), ('{"type":"round"}', "not understood")):
        app.probe.start()
        bench.begun()
        bench.say(words)
        ends(app, "failed")
        assert told in app.probe.error_text
    bench.jobs._command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    app.probe.start()
    ends(app, "failed")
    assert app.probe.error_text == "the probe's process ended (exit code 1): no such luck"


def test_hostile_names_stay_text(bench):
    cluster = hostile_cluster()
    app = bench.page(cluster)
    part = ProbePart(app)
    app.probe.start()
    bench.begun()
    hosts = [host.id for host in cluster.hosts]
    bench.round(record_of(cluster, links=(link(hosts[0], hosts[1]), link(hosts[1], hosts[0]))), 1, words=IMG)
    shows(app, lambda: app.probe.has_numbers)
    html = part.found.object + part.state.view.object + part.error.view.object
    assert "&lt;img" in html
    assert not any(mark in html for mark in MARKUP)


def test_paths_are_told_by_their_last_part():
    for text, told in (
        ("/a/b/c.toml: bad", "c.toml: bad"),
        ("~/x/y, and ../z/w", "y, and w"),
        ("Load key '/home/ann/.ssh/id_rsa': denied", "Load key 'id_rsa': denied"),
        ("1 Gbit/s at 10.0.0.0/24, and/or n/a", "1 Gbit/s at 10.0.0.0/24, and/or n/a"),
        ("try `ssh me@gpu-a.lab true`", "try `ssh me@gpu-a.lab true`"),
        ("is a folder: /", "is a folder: …"),
    ):
        assert without_paths(text) == told


# -- the worker -----------------------------------------------------------------------------------


def worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., None], **request: Any) -> list[dict]:
    """What the worker says of a probe that does what `run` does."""
    made: list[Any] = []

    class FakeProbe:
        def __init__(self, hosts: Any, site_of: Any, ssh_config: Any) -> None:
            self.seen, self.closed = (tuple(host.address for host in hosts), dict(site_of)), False
            made.append(self)

        def run(self, record: Record, devices_of: Any, *, all_pairs: bool, tell: Any) -> Record:
            run(record, devices_of, tell)
            return record

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(measuring, "Probe", FakeProbe)
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('format = "hetplanner/hosts@1"\n' + "".join(f"[hosts.{host.id}]\n" for host in LAB.hosts))
    (tmp_path / "agent.toml").write_text(f'[hosts]\nlab = "{hosts}"\n')
    for path in (hosts, tmp_path / "agent.toml"):
        path.chmod(0o600)
    out = io.StringIO()
    asked = json.loads(ProbeRequest(LAB, "lab").to_message(tmp_path / "r.probe.json", tmp_path))
    Worker(out).probe(asked | request)
    assert all(one.closed for one in made)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_worker_keeps_every_round_and_says_how_far_it_is(tmp_path, monkeypatch):
    def run(record: Record, devices_of: Any, tell: Any) -> None:
        assert (record.links, list(devices_of)) == ((), ["h0-0", "h0-1", "h1-0"])
        tell(record, Job(0, 1, "links", 0, 8))
        assert load_record(tmp_path / "r.probe.json") == record
        tell(record.replace(links=LINKS.links), Job(1, 1, "", 8, 0))

    (tmp_path / ".0123456789abcdef.draft").touch()
    said = worked(tmp_path, monkeypatch, run)
    assert [one["type"] for one in said] == ["round", "round", "end"]
    assert said[0] == {"type": "round", "done": 0, "total": 1, "words": "links", "left_s": None}
    assert load_record(tmp_path / "r.probe.json").links == LINKS.links
    assert not list(tmp_path.glob(".*.draft"))

    def go_on(record: Record, devices_of: Any, tell: Any) -> None:
        assert (record.links, devices_of) == (LINKS.links, {})

    assert worked(tmp_path, monkeypatch, go_on, only="links") == [{"type": "end"}]

    def begin(record: Record, devices_of: Any, tell: Any) -> None:
        assert record.links == ()

    assert worked(tmp_path, monkeypatch, begin, anew=True) == [{"type": "end"}]


def test_the_worker_tells_what_fails(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise RunError("host b: gone")

    assert worked(tmp_path, monkeypatch, fail) == [{"type": "error", "text": "host b: gone"}]
    said = worked(tmp_path, monkeypatch, fail, hosts="else")
    assert said[0]["text"].startswith("hosts: 'else' is not offered by the agent (lab)")

    def break_down(*_: Any) -> None:
        raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        worked(tmp_path, monkeypatch, break_down)


def test_a_real_worker_starts_and_tells_that_a_host_is_unknown(bench):
    bench.jobs = ProbeJobs(bench.home)
    hosts = bench.home / "hosts.toml"
    hosts.write_text('format = "hetplanner/hosts@1"\n[hosts.h0-9]\n')
    hosts.chmod(0o600)
    bench.offer(text=f'[hosts]\nlab = "{hosts}"\n')
    app = bench.page()
    app.probe.start()
    ends(app, "failed")
    assert app.probe.error_text.startswith("hosts.h0-9: the cluster has no such host; did you mean")


# -- the time that is left ------------------------------------------------------------------------


def test_the_time_left_follows_from_the_streams_so_far():
    now = SimpleNamespace(s=0.0)
    pace = Pace(lambda: now.s)
    assert pace.left_s(Job(0, 4, "devices", 0, 20)) is None
    now.s = 100.0  # devices say nothing of links
    assert pace.left_s(Job(1, 4, "links", 0, 20)) is None
    now.s = 108.0
    assert pace.left_s(Job(2, 4, "links", 8, 12)) == pytest.approx(12.0)
    now.s = 116.0
    assert pace.left_s(Job(3, 4, "network card of a", 16, 4)) == pytest.approx(4.0)
    assert [left_text(left_s) for left_s in (None, 0.0, 4.0, 61.0)] == ["", "", "about 5 s left", "about 65 s left"]
