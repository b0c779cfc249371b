"""How busy the hosts of a run are: measured on this machine, written, read, drawn."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from hetplanner.plots.data.runs.host_loads import busy_lines, traffic_lines
from hetplanner.plots.live import HostLoads, HostTraffic
from hetplanner.runs.reading.telemetry import MAX_LOADS, RankTelemetry
from hetplanner.runtime.measure import host_load
from hetplanner.runtime.measure.host_load import HostLoad, gpu_load
from hetplanner.runtime.measure.telemetry import Telemetry
from tests.support.processes.patience import until
from tests.support.runs.fake_ranks import step_record, write
from tests.unit.runs.reading.test_runs_life import a_run


def load_line(time_s: float, host: str, cpu: float = 0.5, sent: float = 1e6, gpus: list | None = None) -> dict:
    line = {"type": "load", "time_s": time_s, "host": host, "cpu": cpu, "memory": 0.25}
    line |= {"sent": sent, "received": 2 * sent, "loopback": 0}
    return line if gpus is None else line | {"gpus": gpus}


def answers(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program called nvidia-smi first in PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_this_machine_tells_its_load_until_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(host_load, "EVERY_S", 0.05)
    path = tmp_path / "rank-0.jsonl"
    telemetry = Telemetry(path, 0)
    load = HostLoad(telemetry, "box")
    reader = RankTelemetry(0, path)

    def told() -> bool:
        sum(i * i for i in range(100_000))
        reader.poll(2**20)
        return len(reader.loads) >= 5

    until(told)
    load.close()
    load._thread.join()
    telemetry.close()
    assert reader.corrupted == 0
    assert {sample.host for sample in reader.loads} == {"box"}
    assert max(sample.cpu for sample in reader.loads) > 0
    assert all(0 < sample.memory <= 1 for sample in reader.loads)
    assert all(abs(sample.time_s - time.time()) < 3600 for sample in reader.loads)


def test_gpus_are_what_nvidia_smi_says(tmp_path, monkeypatch):
    answers(tmp_path, "echo '97, 40000, 80000'; echo '0, 0, 81559'", monkeypatch)
    assert gpu_load() == [(0.97, 0.5), (0.0, 0.0)]


@pytest.mark.parametrize(
    "script", ["exit 9", "echo 'No devices were found'", "echo '[N/A], 1, 2'", "echo '5, 1'", "echo '1, 1, 0'"]
)
def test_without_an_answer_no_gpu_is_told(script, tmp_path, monkeypatch):
    answers(tmp_path, script, monkeypatch)
    assert gpu_load() == []


def test_a_gpu_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    answers(tmp_path, "exec sleep 60", monkeypatch)
    monkeypatch.setattr(host_load, "ANSWER_S", 0.2)
    began_s = time.monotonic()
    assert gpu_load() == []
    assert time.monotonic() - began_s < 30


def test_a_long_run_keeps_few_samples_of_its_whole_length(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    gpus = [[0.5, 0.1]]
    lines = [load_line(float(i), "box", gpus=gpus if i % 5 == 0 else None) for i in range(5 * MAX_LOADS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rank = RankTelemetry(0, path)
    while rank.poll(2**20):
        pass
    assert MAX_LOADS / 2 <= len(rank.loads) <= MAX_LOADS
    assert (rank.loads[0].time_s, rank.loads[-1].time_s) == (0.0, pytest.approx(5 * MAX_LOADS, rel=0.01))
    assert sum(bool(sample.gpus) for sample in rank.loads) > MAX_LOADS / 4


@pytest.mark.parametrize(
    "damage",
    [{"cpu": -0.1}, {"cpu": "much"}, {"sent": float("nan")}, {"gpus": 5}, {"gpus": [[1]]}, {"time_s": 1e300}],
)
def test_damaged_samples_are_counted_and_passed_over(damage, tmp_path):
    write(tmp_path, 0, load_line(1.0, "box"), load_line(2.0, "box") | damage, load_line(3.0, "box", cpu=7.0))
    rank = RankTelemetry(0, tmp_path / "rank-0.jsonl")
    rank.poll(2**20)
    assert [sample.time_s for sample in rank.loads] == [1.0, 3.0]
    assert rank.loads[-1].cpu == 1.0
    assert rank.corrupted == 1


def test_every_host_has_its_lines(tmp_path):
    run, _ = a_run(tmp_path)
    write(tmp_path, 0, load_line(10.0, "tokyo", 0.2, gpus=[[0.5, 0.1], [1.0, 0.1]]), load_line(11.0, "tokyo", 0.4))
    write(tmp_path, 2, load_line(10.5, "<b>delft", 0.9, sent=125_000))
    run.read_all()
    busy, traffic = busy_lines(run), traffic_lines(run)
    assert [line["host"] for line in busy.solid] == ["tokyo", "<b>delft"]
    assert [line["host"] for line in busy.dashed] == ["tokyo"]
    assert busy.solid[0]["colour"] == busy.dashed[0]["colour"] != busy.solid[1]["colour"]
    np.testing.assert_allclose(busy.solid[0]["ys"], [0.2, 0.4])
    np.testing.assert_allclose(busy.solid[1]["xs"], [0.5])
    np.testing.assert_allclose(busy.dashed[0]["ys"], [0.75])
    np.testing.assert_allclose([line["ys"][-1] for line in traffic.solid], [8.0, 1.0])
    np.testing.assert_allclose([line["ys"][-1] for line in traffic.dashed], [16.0, 2.0])
    for live in (HostLoads(), HostTraffic()):
        assert live._note.text
        live.update(run)
        assert live._note.text == ""
        assert live.sources[0].data["host"] == ["tokyo", "<b>delft"]
        assert live.figure.x_range.end == 1.0
        live.update(None)
        assert live.sources[0].data["host"] == []


def test_one_host_alone_shows_what_its_ranks_say_to_each_other(tmp_path):
    run, _ = a_run(tmp_path)
    write(tmp_path, 0, load_line(1.0, "here", sent=0) | {"loopback": 250_000}, step_record(0, 0, 4, 1.0))
    lines = traffic_lines(run.read_all())
    np.testing.assert_allclose(lines.solid[0]["ys"], [2.0])
    assert lines.dashed == []
