"""The torch half of a peer: three engines in one process train as one does; state, checkpoints and bad input."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from hetplanner.codecs.spec import Codec
from hetplanner.cost.elastic.steady_state import steady_state_plan
from hetplanner.cost.elastic.swarm_rules import checked_swarm
from hetplanner.elastic.coordinator.decisions import Booted, Committed
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.errors import InvalidInput, RunError
from hetplanner.plan.files.stage_checkpoints import check_checkpoint, checkpoint_path
from hetplanner.runtime.model.build import StageModel
from hetplanner.runtime.train.data import open_batches
from hetplanner.swarm.decision_file import DecisionFile
from hetplanner.swarm.peer.engine import StageEngine
from hetplanner.swarm.peer.state import load_checkpoint, receive_state, save_checkpoint
from hetplanner.swarm.peer.tensor_checks import check_finite
from hetplanner.swarm.spec import read_spec
from hetplanner.units import short_bytes
from tests.support.plans.factories import swarm_plan
from tests.support.processes.own_loop import finish
from tests.support.swarms.swarm_runs import (
    engines_of,
    reference_losses,
    run_micro_batch,
    small_spec,
    tokens_of,
    train_delayed,
    undisturbed_losses,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "options",
    [{}, {"recompute": True, "dropout": 0.1}, {"delayed": True}],
    ids=["plain", "recompute", "delayed"],
)
def test_three_engines_train_as_one_process_does(options):
    spec = small_spec(steps=4, micro_batches=4, **options)
    engines, batches, losses = engines_of(spec), open_batches(spec.train, spec.workload), []
    for step in range(4):
        run_micro_batch(engines, batches, step, 2, nonce=7)  # done twice: only what is named is folded
        done = [run_micro_batch(engines, batches, step, m) for m in (2, 0, 3, 1)]
        for stage, engine in enumerate(engines):
            total = engine.fold([tokens[stage] for tokens in done])
            assert total.count == 4
            engine.keep_sum(Stamp(1, step), total)
            engine.drop()
            engine.apply(Stamp(1, step), Version(0, step + 1))
        losses.append(total.loss_sum / spec.workload.tokens_per_step)
    assert losses == pytest.approx(reference_losses(spec), rel=1e-6)


def test_a_delayed_update_changes_the_curve_and_the_saved_weights_hold_all_gradients():
    plain, delayed = small_spec(steps=3, micro_batches=2), small_spec(steps=3, micro_batches=2, delayed=True)
    prompt, late = reference_losses(plain), reference_losses(delayed)
    assert prompt[0] == late[0]
    assert prompt[1] != late[1]  # the second step knows of no update yet
    engines = engines_of(delayed)
    assert undisturbed_losses(delayed, engines) == pytest.approx(late, rel=1e-6)
    model, _ = train_delayed(delayed)
    state = engines[0].state()
    wanted = torch.cat([weight.flatten() for name, weight in model.items() if name in engines[0].model.named_weights()])
    assert torch.allclose(state.tensors["weights"], wanted, atol=1e-6)
    assert not torch.equal(state.tensors["weights"], state.tensors["in_use"])


@pytest.mark.parametrize("delayed", [False, True])
def test_gradients_are_clipped_by_the_norm_of_all_stages_with_shared_weights_counted_once(delayed):
    options = {"steps": 8, "micro_batches": 2, "shared_layers": 3, "tied": True, "delayed": delayed}
    clipped, free = small_spec(**options, clip_norm=0.3), small_spec(**options)
    wanted = reference_losses(clipped)
    assert max(abs(a - b) for a, b in zip(wanted, reference_losses(free), strict=True)) > 1e-4  # it matters
    assert undisturbed_losses(clipped) == pytest.approx(wanted, rel=1e-6)


async def _streamed(state, change=lambda piece: piece, **sizes):
    async def pieces():
        yield change(state.head())
        for piece in state.pieces():
            yield change(piece)

    return await receive_state(pieces(), state.stage, {name: t.numel() for name, t in state.tensors.items()} | sizes)


@pytest.mark.parametrize(("name", "delayed"), [("sgd", False), ("adafactor", True), ("muon", True)])
def test_other_optimizers_train_as_one_process_and_their_states_travel(name, delayed):
    spec = small_spec(steps=4, micro_batches=2, delayed=delayed)
    spec = spec.replace(workload=spec.workload.replace(optimizer=name))
    engines = engines_of(spec)
    losses = undisturbed_losses(spec, engines)
    if not delayed:  # the late reference knows AdamW alone
        assert losses == pytest.approx(reference_losses(spec), rel=1e-5)
    copy = StageEngine(spec, CPU)
    copy.build(1)
    copy.load(finish(_streamed(engines[1].state())))
    assert copy.digest() == engines[1].digest()
    with pytest.raises(ValueError, match="elastic training sends no 8-bit states; plan with --optimizer"):
        spec.replace(workload=spec.workload.replace(optimizer="adamw8bit"))


@pytest.mark.parametrize("delayed", [False, True])
def test_a_state_travels_whole_and_the_copy_goes_on_equal(delayed):
    spec = small_spec(micro_batches=2, delayed=delayed)
    engines, batches = engines_of(spec), open_batches(spec.train, spec.workload)
    copy, source = StageEngine(spec, CPU), engines[1]
    for step in range(3):
        done = [run_micro_batch(engines, batches, step, m) for m in (0, 1)]
        if step == 2:
            copy.build(1)
            copy.load(finish(_streamed(source.state())))
            assert copy.version == Version(0, 2)
            assert copy.digest() == source.digest()
            copy.keep_sum(Stamp(1, step), source.fold([tokens[1] for tokens in done]))
            copy.apply(Stamp(1, step), Version(0, step + 1))
        for stage, engine in enumerate(engines):
            engine.keep_sum(Stamp(1, step), engine.fold([tokens[stage] for tokens in done]))
            engine.apply(Stamp(1, step), Version(0, step + 1))
    assert copy.digest() == source.digest()
    assert engines[2].digest() != source.digest()
    assert torch.equal(copy.model.flat, source.model.flat)  # what the next step is computed with


def test_a_damaged_or_foreign_state_is_refused():
    engine = engines_of(small_spec())[1]
    state, elements = engine.state(), engine.model.flat.numel()
    for change, law in (
        (lambda p: p[:-1], "must be of stage|damaged|not JSON"),
        (lambda p: p if p.startswith(b"{") else bytes(len(p)), "damaged"),
        (lambda p: p if p.startswith(b"{") else p + p, "more than"),
        (lambda p: b"[" * 5000, "at most 4096"),
    ):
        with pytest.raises(InvalidInput, match=law):
            finish(_streamed(state, change))
    with pytest.raises(InvalidInput, match="must be of stage"):
        finish(_streamed(state, weights=elements + 1))


def test_a_checkpoint_is_read_as_it_was_written_and_old_ones_go(tmp_path):
    engine = engines_of(small_spec())[0]
    state = engine.state()
    for step in range(4):
        save_checkpoint(type(state)(0, Version(0, step), 5, state.tensors), tmp_path, kept=2)
    assert len(list(tmp_path.iterdir())) == 2
    found = load_checkpoint(tmp_path, 0, Version(0, 3), ("weights", "mean", "square"))
    assert found.num_steps == 5
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in state.tensors.items())
    path = checkpoint_path(tmp_path, 0, Version(0, 3))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="cannot be read as a checkpoint"):
        load_checkpoint(tmp_path, 0, Version(0, 3), ("weights",))
    with pytest.raises(InvalidInput, match="in_use"):
        load_checkpoint(tmp_path, 0, Version(0, 2), ("weights", "in_use"))


def test_a_checkpoint_with_other_bytes_than_were_written_is_refused_and_one_of_an_older_version_is_read(tmp_path):
    state = engines_of(small_spec())[0].state()
    save_checkpoint(state, tmp_path, kept=1)
    path = checkpoint_path(tmp_path, 0, state.version)
    check_checkpoint(path)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x00\x80\x3f")
    for read in (check_checkpoint, lambda _: load_checkpoint(tmp_path, 0, state.version, ("weights",))):
        with pytest.raises(InvalidInput, match="is damaged, its digest is another"):
            read(path)
    save_file(dict(state.tensors), path, metadata={"num_steps": "0"})
    assert load_checkpoint(tmp_path, 0, state.version, ("weights",)).num_steps == 0


def test_checkpoints_that_all_stages_have_stay_while_one_stage_saves_nothing(tmp_path):
    state = engines_of(small_spec())[0].state()

    def save(stage, step):
        save_checkpoint(type(state)(stage, Version(0, step), 5, state.tensors), tmp_path, kept=1)

    for stage, step in ((0, 1), (1, 1), (0, 2), (0, 3), (0, 4)):
        save(stage, step)
    assert {p.name for p in tmp_path.glob("*step-1.*")} == {
        f"stage-{stage}-lineage-0-step-1.safetensors" for stage in (0, 1)
    }
    save(1, 4)
    save(0, 5)
    assert sorted(int(p.stem.rsplit("-", 1)[1]) for p in tmp_path.glob("stage-0-*")) == [4, 5]
    assert [p.name for p in tmp_path.glob("stage-1-*")] == ["stage-1-lineage-0-step-4.safetensors"]


def test_bad_tensors_are_refused():
    spec = small_spec()
    first, second, _ = engines_of(spec)
    key, good = ("caller:1", 1), tokens_of(open_batches(spec.train, spec.workload), 0, 0)
    with pytest.raises(InvalidInput, match="tensors must have"):
        first.forward(key, 0, 0, [good[0], good[1][:-4]])
    wild = memoryview(torch.full((64,), 300, dtype=torch.int32).numpy().tobytes())
    with pytest.raises(InvalidInput, match="tokens must be from 0 to 255, got 300"):
        first.forward(key, 0, 0, [wild, good[1]])
    activation, labels = first.forward(key, 0, 0, good)
    broken = torch.frombuffer(bytearray(activation), dtype=torch.float32)
    broken[5] = torch.nan
    with pytest.raises(InvalidInput, match="not finite"):
        second.forward(key, 0, 0, [memoryview(broken.numpy().tobytes()), memoryview(labels)])


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8", "int4"])
def test_numbers_are_checked_in_their_encoded_form(name):
    from hetplanner.runtime.model.precision import boundary_codec

    codec = Codec(name=name)
    x = torch.randn(1000)
    for value, fine in ((0.5, True), (torch.inf, False), (torch.nan, False)):
        x[700] = value
        out = torch.empty(codec.wire_bytes(1000, 4), dtype=torch.uint8)
        boundary_codec(codec, "float32").encode(x, out)
        part = memoryview(out.numpy().tobytes())
        if fine:
            check_finite(codec, "float32", part, 1000)
        else:
            with pytest.raises(InvalidInput, match="not finite"):
                check_finite(codec, "float32", part, 1000)


def test_a_spec_is_read_as_it_was_written_and_fingerprints_tell_specs_apart():
    spec = small_spec(codec="int8")
    assert read_spec(spec.to_json()) == spec
    assert read_spec(spec.to_json()).fingerprint == spec.fingerprint
    assert small_spec(codec="none").fingerprint != spec.fingerprint


def test_the_description_of_an_older_run_is_read():
    spec = small_spec()
    fields = json.loads(spec.to_json())
    del fields["delayed_updates"], fields["local_steps"], fields["outer"], fields["settings"]["round_steps"]
    assert read_spec(json.dumps(fields)) == spec


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"first_ops": (0, 2, 5)}, "along boundaries"),
        ({"activation_codec": Codec(name="topk", ratio=10.0)}, "must be one of"),
        ({"averaging_codec": Codec(name="fp16")}, "must be none or int8"),
    ],
)
def test_a_spec_that_cannot_be_trained_is_refused(changes, law):
    with pytest.raises(InvalidInput, match=law):
        small_spec().replace(**changes)


def test_the_decision_file_drops_a_torn_line_and_belongs_to_one(tmp_path):
    path = tmp_path / "decisions.log"
    log = DecisionFile(path)
    log.append(Booted(1))
    log.append(Committed(1, Stamp(1, 2), Version(0, 1), 3.25))
    with pytest.raises(RunError, match="another coordinator"):
        DecisionFile(path)
    log.close()
    with path.open("ab") as file:
        file.write(b"0123 {")
    again = DecisionFile(path)
    assert again.decisions == [Booted(1), Committed(1, Stamp(1, 2), Version(0, 1), 3.25)]
    again.append(Booted(2))
    again.close()
    assert DecisionFile(path).decisions[-1] == Booted(2)


def test_an_emulated_peer_is_as_slow_as_in_the_stage_that_it_serves_now(monkeypatch):
    spec, slept = small_spec(), []
    monkeypatch.setattr("hetplanner.swarm.peer.engine.time.sleep", slept.append)
    engine = StageEngine(spec, CPU, (0.01, 0.02, 0.04))
    for stage in (0, 2, 1):
        engine.begin(stage, Version(0, 0))
        engine._paced(0.5, lambda: None)
    assert slept == pytest.approx([50.0, 12.5, 25.0], abs=0.5)
    assert StageEngine(spec, CPU, (3.0,)).speeds == (3.0, 3.0, 3.0)
    with pytest.raises(InvalidInput, match="one for each of 3 stages, got 2"):
        StageEngine(spec, CPU, (1.0, 2.0))


@pytest.mark.parametrize("cuts", [(), (3,)], ids=["tied in one stage", "two stages"])
def test_a_plan_says_how_much_host_memory_the_gradients_of_a_step_take(cuts):
    plan = swarm_plan((2, 3)[: 1 + len(cuts)], cuts)
    routes = steady_state_plan(plan).routes
    kept = []
    for s, stage in enumerate(plan.stages):
        model = StageModel(plan.problem.workload, stage.first_op, stage.end_op, 0, CPU)
        for r in range(len(stage.peers)):
            kept.append(model.flat_grad.nbytes * sum(way.micro_batches for way in routes if way.replicas[s] == r))
    assert f"take {short_bytes(max(kept))} of host memory" in checked_swarm(plan).estimate.notes[-1]
