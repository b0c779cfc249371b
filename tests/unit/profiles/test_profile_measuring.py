"""A profile that is measured here: whole, of the runtime's own stages, and ended in time."""

import json
from pathlib import Path

import pytest
import torch

from hetplanner.errors import InvalidInput, RunError
from hetplanner.profiles import measuring
from hetplanner.profiles.measuring import measured_profile
from hetplanner.profiles.model import COLLECTIVES
from hetplanner.reading import noting
from hetplanner.runtime.measure import layer_profile
from hetplanner.workload.presets import preset

WINDOW_S = 0.01


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The measuring process's work in this one: its lines are what it prints."""

    def lines(request, goes_on):
        (tmp_path / "request.json").write_text(json.dumps(request))
        threads = torch.get_num_threads()
        try:
            layer_profile.main([str(tmp_path / "request.json")])
        finally:
            torch.set_num_threads(threads)
        for line in capsys.readouterr().out.splitlines():
            if not goes_on():
                return
            yield json.loads(line)

    monkeypatch.setattr(measuring, "_lines", lines)


@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-llama", "tiny-resnet"])
def test_every_layer_is_measured_and_keeps_what_the_cost_model_says(here, name: str) -> None:
    workload = preset(name, dtype="float32")
    profile = measured_profile(workload, [workload.micro_batch], device="cpu", threads=1, window_s=WINDOW_S)
    assert profile.kinds == ("CPU generic",)
    assert profile.torch == torch.__version__.split("+")[0]
    assert "1 threads of" in profile.source
    first = 0
    for run in profile.layers:
        cost = profile.costs["CPU generic", 1, workload.micro_batch][run.name]
        assert cost.forward > 0
        if workload.transformer is not None and run.name == "block":
            ops = workload.graph.ops[first : first + run.ops]
            # Llama's tables of rotations are there once a stage.
            assert cost.kept == pytest.approx(sum(op.activation_bytes for op in ops) * workload.micro_batch, rel=0.02)
        first += run.ops * run.times


def test_micro_batches_are_measured_each(here) -> None:
    profile = measured_profile(preset("tiny-gpt", layers=2), [1, 4, 1], device="cpu", threads=1, window_s=WINDOW_S)
    assert profile.micro_batches("CPU generic") == (1, 4)
    one, four = (profile.costs["CPU generic", 1, size]["block"] for size in (1, 4))
    assert one.kept is not None
    assert four.kept == pytest.approx(4 * one.kept, rel=0.02)  # seconds of a busy machine may come in any order
    assert all(cost.forward > 0 for cost in (one, four))


def test_layers_that_devices_share_are_measured_in_their_processes() -> None:
    workload = preset("tiny-gpt", layers=2)
    profile = measured_profile(workload, [4], degrees=[1, 2], device="cpu", threads=1, window_s=WINDOW_S)
    assert sorted(profile.costs) == [("CPU generic", 1, 4), ("CPU generic", 2, 4)]
    alone, shared = (profile.costs["CPU generic", degree, 4]["block"] for degree in (1, 2))
    assert alone.kept is not None
    assert shared.kept is not None
    # gloo may still hold what it has just sent.
    assert 0.5 <= shared.kept / alone.kept < 0.75
    for collective in COLLECTIVES:
        curve = profile.collective_curve("CPU generic", 2, collective)
        assert [size for size, _ in curve] == list(layer_profile.COLLECTIVE_BYTES)
        assert curve[-1][1] > curve[0][1] > 0


def test_a_degree_that_does_not_divide_the_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^tensor: 4 heads are no multiple of 8; use 4"):
        measured_profile(preset("tiny-gpt"), [1], degrees=[8], device="cpu")


def test_the_kind_can_be_named(here) -> None:
    profile = measured_profile(preset("tiny-gpt"), [1], device="cpu", kind="my CPU", window_s=WINDOW_S)
    assert profile.kinds == ("my CPU",)


def test_what_was_measured_whole_is_kept_when_it_is_ended(here) -> None:
    def after(count: int):
        return lambda done, total, words: done < count

    workload = preset("tiny-gpt", layers=2)
    profile = measured_profile(workload, [1, 2], device="cpu", window_s=WINDOW_S, on_layer=after(4))
    assert profile.micro_batches("CPU generic") == (1,)
    with pytest.raises(RunError, match="ended before a micro-batch was measured whole"):
        measured_profile(workload, [1, 2], device="cpu", window_s=WINDOW_S, on_layer=after(2))


def test_a_size_that_does_not_fit_loses_none_that_did(here, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = layer_profile.profiled

    def short_of_memory(workload, *how):
        if workload.micro_batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        yield from whole(workload, *how)

    monkeypatch.setattr(layer_profile, "profiled", short_of_memory)
    notes: list[str] = []
    with noting(notes.append):
        profile = measured_profile(preset("tiny-gpt", layers=2), [1, 64], device="cpu", window_s=WINDOW_S)
    assert profile.micro_batches("CPU generic") == (1,)
    assert notes == [
        "profile: CUDA out of memory. Tried to allocate 2 GiB; the micro-batches that were measured before are kept"
    ]
    with pytest.raises(InvalidInput, match="profile: CUDA out of memory"):
        measured_profile(preset("tiny-gpt", layers=2), [64], device="cpu", window_s=WINDOW_S)


def test_the_process_is_ended_with_the_measuring() -> None:
    seen: list[str] = []

    def tell(done: int, total: int, words: str) -> bool:
        seen.append(words)
        return done < 1

    with pytest.raises(RunError, match="ended before"):
        measured_profile(preset("tiny-gpt"), [1], device="cpu", window_s=WINDOW_S, on_layer=tell)
    assert seen[0] == "loading torch"
    assert seen[-1] == "measured embedding at micro-batch 1"


@pytest.mark.parametrize(
    ("name", "sizes", "more", "message"),
    [
        ("tiny-gpt", [], {}, "must be one or more numbers from 1"),
        ("tiny-gpt", [0], {}, "must be one or more numbers from 1"),
        ("tiny-gpt", [1], {"threads": 0}, "threads: must be from 1 to 4096"),
        ("tiny-gpt", [1], {"device": "tpu"}, "profile: device: must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_named(here, name: str, sizes: list[int], more, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        measured_profile(preset(name), sizes, window_s=WINDOW_S, **more)


def test_an_old_capture_is_measured_with_its_own_micro_batches_alone() -> None:
    workload = preset("tiny-resnet")
    old = workload.replace(program=workload.program.replace(per_sample=None))
    with pytest.raises(InvalidInput, match=r"a captured model has micro-batches of .* alone, got 3"):
        measured_profile(old, [3], window_s=WINDOW_S)
