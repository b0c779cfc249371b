"""Preemption traces: files, generators, fleets."""

import json

import numpy as np
import pytest

from hetplanner.elastic.forecast import preemptions
from hetplanner.elastic.forecast.preemption_generators import generate_preemptions, make_fleet
from hetplanner.elastic.forecast.preemptions import (
    PUBLISHED_TRACES,
    Life,
    PreemptionTrace,
    load_preemptions,
    preemptions_from_json,
    preemptions_to_data,
    save_preemptions,
)
from hetplanner.errors import InvalidInput

LIVES = (Life(peer="a", start=0.0, end=50.0), Life(peer="a", start=60.0, end=100.0, speed=2.0))
TRACE = PreemptionTrace(name="two stays", duration=100.0, lives=LIVES)


def alive(trace, time_s):
    return sum(life.start <= time_s < life.end for life in trace.lives)


def test_a_trace_survives_its_file(tmp_path):
    save_preemptions(TRACE, tmp_path / "t.json")
    assert load_preemptions(tmp_path / "t.json") == TRACE
    drawn = generate_preemptions(3, peers=5, lifetime_s=900.0, duration_s=3600.0, speeds=(1.0, 1.5))
    save_preemptions(drawn, tmp_path / "d.json")
    assert load_preemptions(tmp_path / "d.json") == drawn


def edited(**changes):
    return json.dumps(preemptions_to_data(TRACE) | changes)


LIFE = {"peer": "a", "start": "1 s", "end": "2 s"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (edited(format="hetplanner/preemptions@2"), "upgrade hetplanner"),
        (edited(format="hetplanner/plan@1"), "format"),
        (edited(lives=[]), "lives"),
        (edited(lives=[LIFE | {"end": "1 s"}]), r"lives\[0\]: end: must be after start 1 s, got 1 s"),
        (edited(lives=[LIFE | {"end": "101 s"}]), r"must be at most the duration 100 s, got 101 s"),
        (edited(lives=[LIFE, LIFE]), "'a' is there twice at 1 s"),
        (edited(lives=[LIFE | {"speed": 0}]), "speed"),
        (edited(lives=[LIFE | {"start": 1}]), "start"),
        (edited(lives=[LIFE | {"code": "x:y"}]), "unknown field"),
        ("[]", "JSON object"),
    ],
)
def test_broken_files_are_refused_in_one_line(text, words):
    with pytest.raises(InvalidInput, match=words) as error:
        preemptions_from_json(text, "t.json")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("t.json")


def test_large_files_are_refused_before_they_are_read_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(preemptions, "MAX_TRACE_BYTES", 200)
    (tmp_path / "t.json").write_text(edited())
    with pytest.raises(InvalidInput, match="must be at most"):
        load_preemptions(tmp_path / "t.json")
    with pytest.raises(InvalidInput, match="must be at most 200 bytes"):
        save_preemptions(TRACE, tmp_path / "u.json")


@pytest.mark.parametrize("name", PUBLISHED_TRACES)
def test_published_traces_are_there_with_their_source(name):
    trace = load_preemptions(name)
    assert not trace.synthetic
    assert "Bamboo" in trace.source
    assert trace.license == "MIT"
    assert 12 <= max(alive(trace, life.start) for life in trace.lives) <= 32


def test_the_named_trace_holds_what_was_published():
    trace = load_preemptions("bamboo_g4dn")
    ended = [life for life in trace.lives if life.end < trace.duration]
    assert (len(trace.lives), len(ended)) == (79, 74)
    assert alive(trace, 600.0) == 21


def test_equal_seeds_draw_equal_traces():
    def draw(seed):
        return generate_preemptions(seed, peers=4, lifetime_s=600.0, duration_s=7200.0, speeds=(1.0, 3.0))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    zone = load_preemptions("bamboo_g4dn_us_east_1d")
    assert make_fleet(zone, 3, 1) == make_fleet(zone, 3, 1)
    assert make_fleet(zone, 3, 1) != make_fleet(zone, 3, 2)


def test_lifetimes_and_waits_have_the_means_that_were_asked_for():
    trace = generate_preemptions(0, peers=400, lifetime_s=1000.0, duration_s=50_000.0, away_s=250.0)
    ended = [life.end - life.start for life in trace.lives if life.end < trace.duration]
    assert np.mean(ended) == pytest.approx(1000.0, rel=0.05)
    assert alive(trace, 25_000.0) == pytest.approx(400 * 0.8, rel=0.1)
    assert alive(trace, 0.0) == 400


def test_a_fleet_has_every_zone_s_hours_once():
    zone = load_preemptions("bamboo_p2")
    fleet = make_fleet(zone, 4, 0, speeds=(2.0,))
    hours = [sum(life.end - life.start for life in trace.lives) for trace in (zone, fleet)]
    assert hours[1] == pytest.approx(4 * hours[0])
    assert {life.speed for life in fleet.lives} == {2.0}
    assert fleet.synthetic
    together = make_fleet(zone, 4, 0, shifted=False)
    assert [alive(together, t) for t in (500.0, 9e4)] == [4 * alive(zone, t) for t in (500.0, 9e4)]


def test_absurd_requests_are_refused():
    with pytest.raises(InvalidInput, match="above 0"):
        generate_preemptions(0, peers=0, lifetime_s=1.0)
    with pytest.raises(InvalidInput, match="a trace holds"):
        generate_preemptions(0, peers=1000, lifetime_s=1.0, away_s=0.0)
    with pytest.raises(InvalidInput, match="copies"):
        make_fleet(TRACE, 0, 0)
