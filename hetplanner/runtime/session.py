"""One rank from start to end: connect, build, profile, predict, train, save.

`worker` calls it under torchrun; tests call it from processes of their own.
"""

import gc
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store

from hetplanner.cluster.measured import Measured
from hetplanner.data.order import SampleOrder
from hetplanner.data.registry import check_all_data
from hetplanner.errors import InvalidInput, RunError
from hetplanner.liveness.heartbeat import EVERYONE, Heartbeat
from hetplanner.plan.durations import Durations
from hetplanner.plan.files.train_files import resume_chain
from hetplanner.plan.model import Plan
from hetplanner.plan.placement import check_host
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.train import TrainConfig, check_packages, check_runnable
from hetplanner.runtime.checkpoint.earlier_state import greatest
from hetplanner.runtime.checkpoint.files import QUICK_S, Checkpoints, copies_here, restore
from hetplanner.runtime.checkpoint.save import join_parts, save_model, save_parts, write_info
from hetplanner.runtime.comm.clocks import ClockOffset, clock_offset
from hetplanner.runtime.comm.connect import Place, agree, claim_rank, join, open_store
from hetplanner.runtime.comm.emulation import CLOCK_FILE, LinkEmulator, create_clocks
from hetplanner.runtime.comm.link_probe import measure_links
from hetplanner.runtime.comm.receive_order import sent_messages
from hetplanner.runtime.comm.transport import Transport
from hetplanner.runtime.comm.wire import CPU, HostWire, PairWire, Wire
from hetplanner.runtime.device import choose_device, have_own_gpus
from hetplanner.runtime.device_group.group import DeviceGroup
from hetplanner.runtime.measure.prediction import PREDICTION_FILE, predict, write_links, write_prediction
from hetplanner.runtime.measure.profile import durations_from, gather_profiles, profile_rank
from hetplanner.runtime.measure.telemetry import Telemetry, keeps_spans
from hetplanner.runtime.model.chunk import build_chunks
from hetplanner.runtime.model.pretrained import load_pretrained
from hetplanner.runtime.model.running_statistics import merge_running
from hetplanner.runtime.train.data import Batches, open_batches, open_held_out
from hetplanner.runtime.train.executor import Executor, StepStats
from hetplanner.runtime.train.stop_vote import StopVote
from hetplanner.runtime.watch import Request, StopWatcher
from hetplanner.schedule.order import make_schedule
from hetplanner.storage.sending import CheckpointCopies, check_store
from hetplanner.weights.adapters import check_adapter
from hetplanner.weights.check import check_weights

log = logging.getLogger(__name__)

PREEMPTED_COPY_S, COPY_POLL_S = 12.0, 0.1
"""How long a preempted host waits until its last checkpoint is copied."""
STOPPED_CHECKPOINT_S = 1.8
"""How long after a stop a checkpoint may be written on; see SAVING_GRACE_S."""
JOIN_PARTS_S, JOIN_LATE_PARTS_S = 3.0, 1.4
"""How long rank 0 waits for the other stages' parts: after the end was asked for, and after its own."""
LINKS_EVERY_S = 1.0
"""Between two lines about links; what they count is added up, so nothing is lost in between."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Session:
    """One rank's run.

    Attributes:
        plan, config: the same on all ranks.
        place: rank, number of ranks, where they meet.
        run_dir: where telemetry, prediction and model go.
        watcher: tells when to stop; started.
        heartbeat: tells the agent what this rank does.
        attempt: how often this run was started again after a failure; from the second on it goes on where it was.
    """

    plan: Plan
    config: TrainConfig
    place: Place
    run_dir: Path
    telemetry: Telemetry
    watcher: StopWatcher
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    attempt: int = 0
    _step: int = -1
    _eval_batches: int = 1
    _paused_s: float = 0.0  # for evaluation, since the last step
    _links_told: tuple[float, int] = (0.0, -1)  # when, and the last step counted
    _checkpoints: Checkpoints | None = None
    _giving_up: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rank(self) -> int:
        """The plan's rank that this process works for."""
        return self.plan.rank_of_process[self.place.rank]

    def run(self, store: Store | None = None) -> int:
        """Runs from connecting to the saved model.

        Args:
            store: where the ranks meet; None opens the one that the environment names.

        Returns:
            Optimiser steps done: fewer than asked for where the run was stopped or preempted.

        Raises:
            InvalidInput: the plan does not fit the number of ranks, the model or the data.
            RunError: the loss is no number, or a peer is lost.
        """
        self._check()
        try:
            return self._run(store)
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, RunError) or not _is_lost_peer(error):
                raise
            where = f"in step {self._step}" if self._step >= 0 else "before the first step"
            raise RunError(f"rank {self.place.rank}: lost a peer {where}: {_first_line(error)}") from error

    def _check(self) -> None:
        devices, world = len(self.plan.processes), self.place.world_size
        if devices != world:
            raise InvalidInput(
                f"plan: has {devices} devices, but {world} processes were started; use --nproc-per-node={devices}"
                " (times --nnodes)"
            )
        check_runnable(self.plan)
        check_packages(self.plan.problem.workload)
        if not self.place.is_loopback:
            check_host(self.plan, self.place.rank, self.place.host, socket.gethostname())
        if {s for s, _ in self.plan.places_of_rank[self.rank]} & {0, len(self.plan.stages) - 1}:
            # Of this host; the agent saw its own.
            check_all_data(self.config.data, self.config.eval_data, self.plan.problem.workload)
        if copies_here(self.config, self.place):
            check_store(str(self.config.copy_to))
        if self._begins_with_weights:
            check_weights(str(self.config.init_from), self.plan.problem.workload)  # of this host, too
            if self.config.adapter is not None:
                check_adapter(self.config.adapter, self.plan.problem.workload)
        if self.config.emulate_links and not self.place.is_one_machine:
            raise InvalidInput(
                f"emulate_links: all ranks must be on one machine, but they meet at {self.place.address};"
                " start them with one torchrun, or with --rdzv-endpoint=127.0.0.1:PORT"
            )

    def _enter(self, phase: str) -> None:
        self.heartbeat.enter(phase)
        self.telemetry.phase(phase)

    def _run(self, store: Store | None) -> int:
        self._enter("connecting")
        if self.place.rank == 0 and self.config.emulate_links:
            create_clocks(self.plan.problem.cluster, self.plan.ranks, self.run_dir)
        store = store or open_store(self.place)
        claim_rank(self.place, store)
        join(self.place, store, loopback=self.place.is_one_machine)
        agree((self.plan.digest() + self.config.model_dump_json()).encode(), "plan and settings")
        self._enter("building")
        executor = self._build()
        self.watcher.on_overdue = lambda: self._give_up(executor)
        self._predict(executor)
        self._restore(executor)
        self.heartbeat.end_step(executor.completed_steps)
        self.watcher.enter_steps()
        self._enter("training")
        try:
            self._train(executor)
            executor.meet()
            if executor.completed_steps == self.config.steps:
                self._validate(executor)
        except RuntimeError as error:
            if not (self.watcher.requested.is_set() and _is_lost_peer(error)):
                raise
            self._give_up(executor)  # the peer was faster to give up
        self._finish(executor)
        return executor.completed_steps

    # -- before the first step --------------------------------------------------------------------

    def _build(self) -> Executor:
        plan, rank = self.plan, self.rank
        device = choose_device(plan, self.config, self.place)
        own_gpus = have_own_gpus(device)
        group = DeviceGroup.join(plan, self.place.rank, own_gpus=own_gpus)
        chunks = build_chunks(plan, rank, self.config, device, group)
        needs_batch = any(chunk.model.needs_batch for chunk in chunks)
        batches, held_out = self._open_data(needs_batch=needs_batch)
        # One rank reads inputs and another their labels; the default is the sources of each host's own Python.
        agree(batches.sample_bytes() if batches else None, "data")
        agree(held_out.sample_bytes() if held_out else None, "data for evaluation")
        emulator = LinkEmulator(plan.problem.cluster, plan.ranks, self.run_dir) if self.config.emulate_links else None
        if emulator:
            self.watcher.on_request = emulator.draining.set
            if self.watcher.requested.is_set():
                emulator.draining.set()
        window = sum(2 * plan.held_S[chunk.stage] for chunk in chunks) + 4
        wire = self._bulk_wire(device) if own_gpus and not emulator else None
        host_wire = HostWire(device, self.config.connections)
        transport = Transport(
            self.place.rank, emulator, window, device, wire, self.heartbeat, host_wire,
            CPU if group.degree > 1 else None, reduces_on_host=len(plan.processes) > len(plan.ranks),
        )  # fmt: skip
        executor = Executor(
            plan, rank, self.config, chunks, transport, batches, self.telemetry, self._order(batches), self.heartbeat,
            group,
        )  # fmt: skip
        executor.held_out = held_out
        return executor

    def _open_data(self, *, needs_batch: bool) -> tuple[Batches | None, Batches | None]:
        """What this rank reads for training, and for evaluation if that is other data; the same ranks read both."""
        workload = self.plan.problem.workload
        found: tuple[Batches | None, Batches | None] = (None, None)
        if needs_batch:
            found = open_batches(self.config, workload), open_held_out(self.config, workload)
        most = (found[1] or found[0]).most_evaluated if found[0] else 0
        knows_documents = any(batches is not None and batches.packed is not None for batches in found)
        facts = torch.tensor([int(knows_documents), most])
        dist.all_reduce(facts, dist.ReduceOp.MAX)
        self._eval_batches = min(self.config.eval_batches, int(facts[1]))
        if facts[0] and not needs_batch:  # documents are kept apart, and targets counted, on all ranks
            found = open_batches(self.config, workload), open_held_out(self.config, workload)
        return found

    def _order(self, batches: Batches | None) -> SampleOrder | None:
        """The order of samples, for ranks that read none but remember them."""
        if not any(rule.codec.delta for rule in self.plan.link_codecs):
            return None
        num_samples = torch.tensor([batches.source.num_samples("train") if batches else 0])
        dist.all_reduce(num_samples, dist.ReduceOp.MAX)
        workload = self.plan.problem.workload
        return SampleOrder(int(num_samples), self.config.seed, workload.micro_batch, workload.num_micro_batches)

    def _bulk_wire(self, device: torch.device) -> Wire:
        """nccl, where every process has a GPU of its own."""
        if self.config.connections > 1:  # else nccl chooses by itself
            os.environ.setdefault("NCCL_NSOCKS_PERTHREAD", str(self.config.connections))
        schedule, groups = make_schedule(self.plan), reduction_groups(self.plan)
        pairs = sent_messages(schedule.actions, groups, self.plan.problem.workload.num_micro_batches)
        return PairWire(self.place.rank, pairs, device)

    def _predict(self, executor: Executor) -> None:
        self._enter("profiling")
        profiles = gather_profiles(profile_rank(executor, in_one_machine=self.place.is_one_machine), self.plan)
        mine = profiles[self.rank]
        self.telemetry.write(
            "profile",
            rank=self.rank,
            stages=[chunk.stage for chunk in executor.chunks],
            device=str(executor.transport.device),
            messages=executor.transport.carrier,
            **{name: getattr(mine, name) for name in mine.__slots__},
        )
        measured, clock = None, ClockOffset(0.0, 0.0)
        if not self.place.is_one_machine:
            clock = clock_offset(self.place.rank, self.place.world_size)
            wire = executor.transport.host_wire
            measured = measure_links(self.plan, self.place.rank, clock, wire, self.heartbeat.advance)
        self._enter("predicting")
        if self.place.rank == 0:
            self._write_prediction(durations_from(profiles), measured)
        gc.freeze()  # what is alive now stays; later collections need not look at it
        self._agree_on_origin(clock)

    def _write_prediction(self, durations: Durations, measured: Measured | None) -> None:
        if (self.run_dir / PREDICTION_FILE).exists():  # after a restart the first one stays
            return
        try:
            if measured is not None:
                write_links(self.plan, measured, self.run_dir)
            write_prediction(predict(self.plan, self.config, durations, measured), self.run_dir)
        except (OSError, InvalidInput) as error:  # a full disk must not end the training
            log.warning("the prediction cannot be written: %s", error)

    def _restore(self, executor: Executor) -> None:
        """Goes on from a checkpoint, of this run after a restart, or of the run that the settings name.

        After the profile, which leaves running statistics changed.
        """
        run_dirs = ([self.run_dir] if self.attempt else []) + resume_chain(self.config.resume)
        if not run_dirs:
            self._load_weights(executor)
            return
        self.heartbeat.enter("restoring")
        found = restore(executor, self.place, run_dirs, self.heartbeat.advance)
        if not found.step and not self.attempt:
            raise InvalidInput(f"resume: {run_dirs[-1]}: no checkpoint that all ranks can read: {found.skipped}")
        source = str(found.run_dir) if found.run_dir else None
        other = {"other_plan": found.other_plan} if found.other_plan else {}
        if not found.step:
            self._load_weights(executor)
        self.telemetry.write("resumed", step=found.step, source=source, skipped=list(found.skipped), **other)
        log.info("goes on after step %d of %s", found.step, source)

    @property
    def _begins_with_weights(self) -> bool:
        """Whether the weights of a model folder will be read; what has been resumed has its own."""
        return self.config.init_from is not None and self.config.resume is None and not self.attempt

    def _load_weights(self, executor: Executor) -> None:
        """The weights of the model folder that the settings name, if they name one: where no step was done before."""
        if self.config.init_from is None:
            return
        self.heartbeat.enter("restoring")
        began_s = time.monotonic()
        weights = check_weights(self.config.init_from, self.plan.problem.workload)
        agree(weights.digest.encode(), "weights of init_from")
        models = [chunk.model for chunk in executor.whole_chunks]
        for whole in executor.wholes:
            whole.gather_state()  # the folder need not have all of it
        read = load_pretrained(models, weights, self.heartbeat.advance) if executor.group.is_leader else 0
        if self.config.adapter is not None:
            adapter = check_adapter(self.config.adapter, self.plan.problem.workload)
            agree(adapter.digest.encode(), "weights of adapter")
            read += load_pretrained(models, adapter, self.heartbeat.advance)
        for whole in executor.wholes:
            whole.scatter_state()
        seconds = round(time.monotonic() - began_s, 6)
        self.telemetry.write("weights", source=self.config.init_from, bytes=read, seconds=seconds)
        log.info("begins with %d bytes of weights of %s, read in %.1f s", read, self.config.init_from, seconds)

    def _agree_on_origin(self, clock: ClockOffset) -> None:
        """All ranks wait for rank 0 (and its prediction) and take one origin for their spans."""
        times = torch.tensor([time.monotonic(), time.time()], dtype=torch.float64)
        dist.broadcast(times, src=0)
        monotonic_s, unix_s = times.tolist()
        self.telemetry.set_origin(monotonic_s + clock.ahead_s, unix_s, clock.error_s)

    # -- steps ------------------------------------------------------------------------------------

    def _train(self, executor: Executor) -> None:
        """Performs the steps that are left, or those until the end that was asked for."""
        vote, checkpoints = StopVote(), Checkpoints(self.config, self.place, self.run_dir, self.telemetry)
        self._checkpoints = checkpoints
        first = executor.completed_steps
        self._links_told = (0.0, first - 1)
        executor.transport.traffic.take()  # what came before the first step is not the plan's
        for chunk in executor.chunks:
            chunk.model.take_expert_loads()
        began_s = time.monotonic()
        try:
            for step in range(first, self.config.steps):
                self._step = step
                vote.begin(self.watcher.request)
                stats = executor.run_step(step)
                self.heartbeat.wait_for(EVERYONE)
                request = vote.decided()
                now_s = time.monotonic()
                self.heartbeat.advance()
                self.heartbeat.end_step(executor.completed_steps, now_s - began_s)
                if executor.group.is_leader:
                    self._report(executor, step, stats)
                self._report_experts(executor, step)
                self._checkpoint(executor, checkpoints, request)
                if request:
                    self.watcher.ask(request)  # of another rank
                    log.info("asked to %s, ends after step %d", request.name.lower(), step)
                    return
                if self.config.eval_every and executor.completed_steps % self.config.eval_every == 0:
                    self._evaluate(executor)
                began_s = time.monotonic()
        finally:
            if executor.group.is_leader:
                self._report_links(executor)

    def _checkpoint(self, executor: Executor, checkpoints: Checkpoints, request: Request) -> None:
        """Writes one where it is due: by the settings, before a preemption, or before a stop if that is quick."""
        match request:
            case Request.PREEMPT:
                self.watcher.leave_steps()
                is_due = True
            case Request.STOP:
                is_due = self.config.checkpoint_every is not None and checkpoints.seconds < QUICK_S
            case _:
                is_due = checkpoints.is_due(executor.completed_steps)
        if is_due:
            self.heartbeat.enter("checkpointing")
            checkpoints.write(executor, wait=request is not Request.NONE)
            self.heartbeat.enter("training")

    def _report(self, executor: Executor, step: int, stats: StepStats) -> None:
        emulator = executor.transport.emulator
        late, late_s = emulator.take_lateness() if emulator else (0, 0.0)
        self.telemetry.write(
            "step",
            step=step,
            start_s=round(stats.start_s - self.telemetry.origin_s, 6),
            end_s=round(stats.end_s - self.telemetry.origin_s, 6),
            loss_sum=stats.loss_sum,
            num_tokens=stats.num_tokens,
            **({} if stats.num_labels is None else {"num_labels": stats.num_labels}),
            boundary_bytes=stats.boundary_bytes,
            reduce_bytes=stats.reduce_bytes,
            late=late,
            late_s=round(late_s, 6),
            grad_norm=stats.grad_norm,
            grad_square=stats.grad_square,
            **({} if stats.loss_scale is None else {"loss_scale": stats.loss_scale, "skipped": stats.skipped}),
            memory_bytes=_resident_bytes(),
            device_bytes=_accelerator_bytes(executor.chunks[0].model.flat),
            in_flight=stats.in_flight,
            held=stats.held,
            **({"paused_s": round(self._paused_s, 6)} if self._paused_s else {}),
        )
        self._paused_s = 0.0
        if stats.end_s - self._links_told[0] >= LINKS_EVERY_S:
            self._report_links(executor)

    def _report_experts(self, executor: Executor, step: int) -> None:
        """Tokens of each expert since the last such line; where spans are kept, as counts wait for the device.

        The members of a group add theirs up.
        """
        if not keeps_spans(step):
            return
        for chunk in executor.chunks:
            for op, tokens in chunk.model.take_expert_loads().items():
                if executor.group.is_leader:
                    self.telemetry.write("experts", step=step, stage=chunk.stage, op=op, tokens=tokens)

    def _report_links(self, executor: Executor) -> None:
        """Bytes and waiting by link since the last such line, and how many whole steps they count."""
        steps, self._links_told = self._step - self._links_told[1], (time.monotonic(), self._step)
        self.telemetry.write("links", step=self._step, steps=steps, links=executor.transport.traffic.take())

    # -- after the last step ----------------------------------------------------------------------

    def _validate(self, executor: Executor) -> None:
        self.heartbeat.enter("validating")
        merge_running(self.plan, self.rank, executor.chunks)
        score = executor.run_validation(self._eval_batches)
        if score.num_targets and executor.group.is_leader:
            known = {} if score.num_correct is None else {"num_correct": score.num_correct}
            step = executor.completed_steps - 1
            self.telemetry.write(
                "validation", step=step, loss_sum=score.loss_sum, num_tokens=score.num_targets, **known
            )

    def _evaluate(self, executor: Executor) -> None:
        """Evaluates between two steps, and leaves no trace in the training: what it changes is put back."""
        if executor.completed_steps == self.config.steps:
            return  # the last evaluation is due anyway
        began_s = time.monotonic()
        if executor.group.is_leader:
            self._report_links(executor)
        models = [chunk.model for chunk in executor.chunks]
        before = [({name: t.clone() for name, t in model.running.items()}, model.counted) for model in models]
        self._validate(executor)
        for model, (running, counted) in zip(models, before, strict=True):
            model.load_running(running)
            model.counted = counted
        executor.transport.traffic.take()  # is not the steps'
        self._paused_s = time.monotonic() - began_s
        self.heartbeat.enter("training")

    def _finish(self, executor: Executor) -> None:
        self.watcher.leave_steps()
        self._enter("saving")
        try:
            executor.transport.finish()
            for whole in executor.wholes:
                whole.gather_state()
            save_model(
                self.plan,
                self.place.rank,
                executor.whole_chunks,
                executor.completed_steps,
                self.run_dir,
                self._waits_no_longer,
            )
            self._finish_checkpoints(executor)
            self.heartbeat.wait_for(EVERYONE)
            dist.barrier()
        except RuntimeError as error:
            if not (self.watcher.requested.is_set() and _is_lost_peer(error)):
                raise
            self._give_up(executor)
        except (OSError, RunError) as error:
            if executor.completed_steps == self.config.steps or self.watcher.request is not Request.PREEMPT:
                raise
            log.warning("the model is not saved, the checkpoint has to do: %s", error)
        if self.place.rank == 0:
            (self.run_dir / CLOCK_FILE).unlink(missing_ok=True)
        dist.destroy_process_group()
        if self._checkpoints is not None and self._checkpoints.copies is not None:
            self._wait_for(self._checkpoints.copies)
        self._enter("done")

    def _finish_checkpoints(self, executor: Executor) -> None:
        """Waits for the one that is being written; a stop gives it up soon, and the one before it stays."""
        checkpoints = self._checkpoints
        assert checkpoints is not None
        while checkpoints.is_writing and not self._stops_at_once():
            self.heartbeat.advance()
            time.sleep(COPY_POLL_S)
        if greatest(int(checkpoints.is_writing)):
            log.warning("the checkpoint that was being written is given up")
            return
        checkpoints.settle()
        if checkpoints.has_failed:  # there was space for the model, so there may be for this
            checkpoints.write(executor, wait=True)

    def _stops_at_once(self) -> bool:
        """Whether a stop was asked for, and what is left must not take longer."""
        return self.watcher.request is Request.STOP and time.monotonic() - self.watcher.asked_s > STOPPED_CHECKPOINT_S

    def _waits_no_longer(self) -> bool:
        """Asked while the model waits for space: the rank is not stuck."""
        self.heartbeat.advance()
        return self.watcher.requested.is_set()

    def _wait_for(self, copies: CheckpointCopies) -> None:
        """Until the last checkpoint is copied; a stop does not wait, a preemption for a while."""
        until_s = time.monotonic() + PREEMPTED_COPY_S
        while not copies.look():
            is_late = self.watcher.request is Request.STOP or time.monotonic() > until_s
            if self._waits_no_longer() and is_late:
                copies.stop()
            time.sleep(COPY_POLL_S)

    def _give_up(self, executor: Executor) -> None:
        """A stop was asked for, and the ranks do not meet in time: every stage is saved as it stood after a step.

        Called by the watcher's thread while this rank is inside a long step or waits for a rank that hangs, or by
        the main thread when another rank has given up. Ends the process.
        """
        if not self._giving_up.acquire(blocking=False):
            time.sleep(10)  # the other thread is at it and ends the process
            return
        if not executor.updating.acquire(timeout=1.0):
            self._exit(1)
        executor.transport.abort()
        log.warning(
            "the step did not end in time after the stop; this stage is saved as of step %d", executor.completed_steps
        )
        try:
            self._save_parts(executor)
        except (OSError, RunError) as error:  # an exception in the watcher's thread would not be reported
            log.error("the stage cannot be saved: %s", error)
            self._exit(1)
        self._enter("done")
        self._exit(self.watcher.exit_code())

    def _exit(self, code: int) -> None:
        self.heartbeat.end(code)
        os._exit(code)

    def _save_parts(self, executor: Executor) -> None:
        for whole in executor.wholes:
            whole.gather_state_alone(executor.completed_steps)
        if not executor.group.is_leader:
            return
        save_parts(executor.whole_chunks, executor.completed_steps, self.run_dir)
        deadline_s = max(self.watcher.asked_s + JOIN_PARTS_S, time.monotonic() + JOIN_LATE_PARTS_S)
        workload, num_stages = self.plan.problem.workload, len(self.plan.stages)
        if self.place.rank == 0 and not join_parts(workload, num_stages, self.run_dir, deadline_s):
            write_info(workload, [executor.completed_steps] * num_stages, self.run_dir)


def _is_lost_peer(error: BaseException) -> bool:
    """gloo and the store raise plain RuntimeErrors whose text starts with a place in their source."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _accelerator_bytes(tensor: torch.Tensor) -> int:
    """Most memory that torch has held on the tensor's device; 0 on a CPU, whose memory is the process's own."""
    return torch.cuda.max_memory_allocated(tensor.device) if tensor.is_cuda else 0


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
