"""Compiled kernels of the closed form of a step. Importing this module imports numba: do it lazily.

Legend of array suffixes: D devices, C device classes, K cut points (op boundaries where a stage may end, both ends
included), H hosts, S stages, R replicas, N placed devices (S x R, stage by stage) plus spare ones.

State: ``place_N`` (``place_N[s*R + p]`` serves stage s of pipeline p), ``cut_S`` (S + 1 indices into the cut points)
and ``share_R`` (micro-batches of each pipeline). The numbers are those of `hetplanner.cost.closed_form`; a test holds
the two equal. What an evaluation computes per stage and per pipeline stays in the work arrays; a search marks the
parts that its move touched as stale, and :func:`update` computes only those anew.
"""

from __future__ import annotations

import numpy as np

from hetplanner.kernels import kernel
from hetplanner.plan.reducers.program import ELEMENT_BYTES, POSTED_REDUCTIONS
from hetplanner.planners.step_time.space import Array, StepProblem, StepWork

# A layout that does not fit costs this many steps per share of memory that is missing, so that the search leaves it.
OVERFLOW_PENALTY = 20.0
# So does a pinned device that is elsewhere.
PIN_PENALTY = 20.0


@kernel(forceinline=True, allocates=False)
def has_backward(problem: StepProblem, end: int) -> bool:
    """Whether a stage that ends there has a backward: a gradient comes back to it, or it is the last."""
    return problem.gradient_K[end] > 0 or problem.boundary_K[end] <= 0


@kernel(forceinline=True, allocates=False)
def compute_seconds(problem: StepProblem, device: int, first: int, end: int) -> tuple[float, float]:
    """Seconds of a micro-batch on the ops between two cut points: forward and backward, and backward alone."""
    row = problem.class_D[device]
    back = problem.backward_CK[row, end] - problem.backward_CK[row, first] if has_backward(problem, end) else 0.0
    return problem.forward_CK[row, end] - problem.forward_CK[row, first] + back, back


@kernel(forceinline=True, allocates=False)
def fit_depth(problem: StepProblem, place_N: Array, cut_S: Array, stage: int, num_replicas: int) -> tuple[int, float]:
    """Micro-batches that every replica of a stage can hold, and the share of memory missing for even one."""
    first, end = cut_S[stage], cut_S[stage + 1]
    base = stage * num_replicas
    return depth_of(problem, place_N, base, base + num_replicas, first, end)


@kernel(forceinline=True, allocates=False)
def depth_of(problem: StepProblem, place_N: Array, begin: int, stop: int, first: int, end: int) -> tuple[int, float]:
    """The same for the devices at some positions and the ops between two cut points."""
    replicas = stop - begin
    elsewhere = problem.sharded_bytes * problem.trained_KK[first, end] * (1.0 - 1.0 / replicas)
    held, each = problem.held_KK[first, end] - elsewhere, problem.each_KK[first, end]
    # Stages that recompute do so by layers where fewer micro-batches than this are in flight.
    below = problem.layers_below_KK[first, end]
    layers_held, layers_each = problem.layers_held_KK[first, end] - elsewhere, problem.layers_each_KK[first, end]
    whole_needed, layers_needed = held + each, layers_held + layers_each
    if replicas > 1:
        part = ELEMENT_BYTES * problem.trained_KK[first, end] / replicas
        awaited = min(POSTED_REDUCTIONS, 2 * (replicas - 1)) * part
        sending = problem.always_KK[first, end] - elsewhere + part
        whole_needed, layers_needed = awaited + max(whole_needed, sending), awaited + max(layers_needed, sending)
    needed = layers_needed if below > 1.0 else whole_needed
    least = np.inf
    missing = 0.0
    for i in range(begin, stop):
        memory = problem.memory_D[place_N[i]]
        lacking = needed - memory
        if lacking > 0:
            missing += min(lacking / max(memory, 1.0), 10.0)
        least = min(least, memory)
    if missing > 0:
        return 1, missing
    depth = held_at_once(least - held, each) if whole_needed <= least else 0
    if depth < below:
        depth = min(held_at_once(least - layers_held, layers_each), int(np.ceil(below)) - 1)
    return max(depth, 1), missing


@kernel(forceinline=True, allocates=False)
def held_at_once(room: float, each: float) -> int:
    """Micro-batches for which there is room."""
    if room < each:
        return 0
    return 1 << 30 if each <= 0 else int(room / each)


@kernel(forceinline=True, allocates=False)
def reduce_phase(problem: StepProblem, place_N: Array, first: int, count: int, num_bytes: float) -> float:
    """Slowest link of one phase among ``count`` devices from position ``first``, each owning one shard."""
    shard = num_bytes / count
    worst = 0.0
    for i in range(first, first + count):
        a = place_N[i]
        latency_D = problem.latency_DD[a]
        rate_D = problem.reduce_rate_DD[a]
        for j in range(first, first + count):
            b = place_N[j]
            # The diagonal is no link.
            if i != j:
                worst = max(worst, latency_D[b] + shard * rate_D[b])
    return worst


@kernel(forceinline=True, allocates=False)
def update_seconds(
    problem: StepProblem, place_N: Array, base: int, count: int, first: int, end: int
) -> tuple[float, float, float]:
    """Of ``count`` replicas from position ``base``: the optimizer, adding gradients up, a phase of the reduction."""
    trained = problem.trained_KK[first, end]
    optimizer = 0.0
    adding = 0.0
    for i in range(base, base + count):
        optimizer = max(optimizer, problem.optimizer_rate_D[place_N[i]])
        adding = max(adding, problem.add_rate_D[place_N[i]])
    if problem.sharded_bytes > 0:
        optimizer /= count
    reduced = problem.reduced_KK[first, end]
    if count < 2 or reduced <= 0:
        return trained * optimizer, 0.0, 0.0
    return trained * optimizer, trained * adding, reduce_phase(problem, place_N, base, count, reduced)


@kernel(forceinline=True, allocates=False)
def reduction_seconds(
    problem: StepProblem, place_N: Array, base: int, count: int, num_bytes: float, phase: float, adding: float,
    reduce_H: Array,
) -> float:  # fmt: skip
    """A stage's reduction, whose phases last as long as its slowest link or, if longer, the busiest of its NICs."""
    if problem.has_nics and count > 1 and num_bytes > 0:
        for i in range(base, base + count):
            phase = max(phase, reduce_H[problem.host_D[place_N[i]]])
    return (2.0 * phase + adding) * problem.reduce_share


@kernel(forceinline=True, allocates=False)
def refresh_stage(
    problem: StepProblem, place_N: Array, cut_S: Array, s: int, num_replicas: int, work: StepWork
) -> None:
    """Depth, memory, reduction and optimizer of a stage."""
    first, end = cut_S[s], cut_S[s + 1]
    base = s * num_replicas
    depth, missing = depth_of(problem, place_N, base, base + num_replicas, first, end)
    if depth != work.depth_S[s]:
        work.depth_S[s] = depth
        work.nic_R[:] = -1.0
    work.missing_S[s] = missing
    work.optimizer_S[s], work.adding_S[s], work.phase_S[s] = update_seconds(
        problem, place_N, base, num_replicas, first, end
    )


@kernel(forceinline=True, allocates=False)
def refresh_route(
    problem: StepProblem, place_N: Array, cut_S: Array, p: int, num_replicas: int, rest: int, work: StepWork
) -> None:
    """Round trips, drains and the busiest device or link of pipeline p, which has ``rest`` + 1 micro-batches."""
    num_stages = len(cut_S) - 1
    slowest = 0.0
    drain = 0.0
    before = -1
    for s in range(num_stages):
        a = place_N[s * num_replicas + p]
        seconds, back = compute_seconds(problem, a, cut_S[s], cut_S[s + 1])
        hop = 0.0
        if s:
            there = problem.boundary_K[cut_S[s]] * problem.pipe_rate_DD[before, a]
            home = problem.gradient_K[cut_S[s]] * problem.pipe_rate_DD[a, before]
            slowest = max(slowest, there, home)
            hop = problem.latency_DD[a, before] + home
            drain += hop
            hop += problem.latency_DD[before, a] + there
        work.drain_SR[s, p] = drain
        drain += back
        slowest = max(slowest, seconds)
        # For now each stage's own part with the hop before it; the suffix sums follow.
        work.trip_SR[s, p] = seconds
        if s:
            work.trip_SR[s - 1, p] += hop
        before = a
    for s in range(num_stages - 2, -1, -1):
        work.trip_SR[s, p] += work.trip_SR[s + 1, p]
    work.load_R[p] = rest * slowest
    work.nic_R[p] = -1.0


@kernel(forceinline=True, allocates=False)
def rounds_seconds(rest: int, depth: int, trip: float, slowest: float) -> float:
    """From the first backward to the last where ``depth`` micro-batches are in flight; 0 if all may be."""
    if rest < depth:
        return 0.0
    rounds = rest // depth
    return rounds * trip + (rest - rounds * depth) * slowest


@kernel(forceinline=True, allocates=False)
def route_end(p: int, rest: int, nic_s: float, work: StepWork) -> float:
    """End of pipeline p's last backward."""
    more = max(work.load_R[p], nic_s)
    base = more
    slowest = more / max(rest, 1)
    for s in range(len(work.depth_S)):
        base = max(base, rounds_seconds(rest, work.depth_S[s], work.trip_SR[s, p], slowest))
    return work.trip_SR[0, p] + base


@kernel(forceinline=True, allocates=False)
def load_nics(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, work: StepWork) -> None:
    """NIC-busy seconds of every host: of the pipelines over a step, and of one phase of the stages' reductions.

    A sharded reduction sends what it takes, so both ways carry the same.
    """
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    work.pipe_2H[:] = 0.0
    work.reduce_H[:] = 0.0
    for s in range(num_stages):
        base = s * num_replicas
        for i in range(base, base + num_replicas if s else base):
            load_pipe(problem, place_N[i], place_N[i - num_replicas], cut_S[s], share_R[i - base], work.pipe_2H)
        num_bytes = problem.reduced_KK[cut_S[s], cut_S[s + 1]]
        load_reduction(problem, place_N, base, num_replicas, num_bytes, work.count_H, work.reduce_H)
    slow_down(problem, work.pipe_2H, work.reduce_H)


@kernel(forceinline=True, allocates=False)
def load_pipe(problem: StepProblem, device: int, other: int, cut: int, count: int, pipe_2H: Array) -> None:
    """Bytes between a device and that of the stage before, if they are on two hosts; rows: sent, received."""
    host, far = problem.host_D[device], problem.host_D[other]
    if host != far:
        activation, gradient = problem.boundary_K[cut] * count, problem.gradient_K[cut] * count
        pipe_2H[0, far] += activation
        pipe_2H[1, host] += activation
        pipe_2H[0, host] += gradient
        pipe_2H[1, far] += gradient


@kernel(forceinline=True, allocates=False)
def load_reduction(
    problem: StepProblem, place_N: Array, base: int, count: int, num_bytes: float, count_H: Array, reduce_H: Array
) -> None:
    """Bytes of one phase of a stage's reduction; `count_H` is scratch, 0 before and after."""
    shard = num_bytes / count
    for i in range(base, base + count):
        count_H[problem.host_D[place_N[i]]] += 1
    for i in range(base, base + count):
        host = problem.host_D[place_N[i]]
        reduce_H[host] += shard * (count - count_H[host])
    for i in range(base, base + count):
        count_H[problem.host_D[place_N[i]]] = 0


@kernel(forceinline=True, allocates=False)
def slow_down(problem: StepProblem, pipe_2H: Array, reduce_H: Array) -> None:
    """Turns bytes into seconds: those of the busier way, in the first row."""
    for h in range(len(reduce_H)):
        out, into = problem.nic_out_H[h], problem.nic_in_H[h]
        pipe_2H[0, h] = max(pipe_2H[0, h] * out, pipe_2H[1, h] * into)
        reduce_H[h] *= max(out, into)


@kernel(allocates=False)
def egress_usd(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, work: StepWork) -> float:
    """Dollars for bytes that leave a site in one step."""
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    total = 0.0
    for s in range(num_stages):
        shard = problem.reduced_KK[cut_S[s], cut_S[s + 1]] / num_replicas
        for p in range(num_replicas):
            a = place_N[s * num_replicas + p]
            if s:
                b = place_N[(s - 1) * num_replicas + p]
                there = problem.boundary_K[cut_S[s]] * problem.egress_DD[b, a]
                total += share_R[p] * (there + problem.gradient_K[cut_S[s]] * problem.egress_DD[a, b])
            for q in range(num_replicas):
                total += 2.0 * problem.reduce_share * shard * problem.egress_DD[a, place_N[s * num_replicas + q]]
    for g in range(len(problem.tied_bytes_G)):
        count = tied_members(problem, place_N, cut_S, g, num_replicas, work.member_N)
        total += tied_egress_usd(problem, work.member_N, count, problem.tied_bytes_G[g])
    return total


@kernel(allocates=False)
def tied_egress_usd(problem: StepProblem, member_N: Array, count: int, num_bytes: float) -> float:
    """Dollars for the reduction of a weight that so many devices hold."""
    usd = 0.0
    for i in range(count):
        for j in range(count):
            usd += problem.egress_DD[member_N[i], member_N[j]]
    return usd * 2.0 * num_bytes * problem.reduce_share / max(count, 1)


@kernel(forceinline=True, allocates=False)
def next_user(problem: StepProblem, cut_S: Array, group: int, user: int, stage: int) -> int:
    """Stage of a user of a tied weight, not before that of the user before it; -1 if there are no more users."""
    place = problem.tied_GM[group, user]
    if place < 0:
        return -1
    while cut_S[stage + 1] <= place:
        stage += 1
    return stage


@kernel(forceinline=True, allocates=False)
def after_tied(problem: StepProblem, cut_S: Array, group: int, reduction: float, done_S: Array) -> float:
    """When a tied weight is summed that waits for all its stages; `done_S` becomes that in them, as the next waits."""
    ready = 0.0
    for pass_ in range(2):
        stage = 0
        for user in range(problem.tied_GM.shape[1]):
            stage = next_user(problem, cut_S, group, user, stage)
            if stage < 0:
                break
            if pass_ == 0:
                ready = max(ready, done_S[stage] + reduction)
            else:
                done_S[stage] = ready
    return ready


@kernel(forceinline=True, allocates=False)
def tied_members(
    problem: StepProblem, place_N: Array, cut_S: Array, group: int, num_replicas: int, member_N: Array
) -> int:
    """The devices of all stages that use a tied weight; returns how many, 0 if it is one stage alone."""
    count = 0
    before = -1
    for user in range(problem.tied_GM.shape[1]):
        stage = next_user(problem, cut_S, group, user, max(before, 0))
        if stage < 0:
            break
        if stage != before:
            for p in range(num_replicas):
                member_N[count] = place_N[stage * num_replicas + p]
                count += 1
        before = stage
    return count if count > num_replicas else 0


@kernel(allocates=False)
def evaluate(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, work: StepWork) -> tuple[float, float]:
    """Closed form of one layout: ``(value, soft)``; the soft part (means where the value has maxima) guides."""
    work.stale_S[:] = True
    work.stale_R[:] = True
    return update(problem, place_N, cut_S, share_R, work)


@kernel(forceinline=True, allocates=False)
def update(problem: StepProblem, place_N: Array, cut_S: Array, share_R: Array, work: StepWork) -> tuple[float, float]:
    """The same where only stale stages and pipelines have changed since the last call; leaves nothing stale."""
    num_stages, num_replicas = len(cut_S) - 1, len(share_R)
    for g in range(len(problem.tied_bytes_G)):
        refresh_tied(problem, place_N, cut_S, g, num_replicas, work)
    for s in range(num_stages):
        if work.stale_S[s]:
            refresh_stage(problem, place_N, cut_S, s, num_replicas, work)
            work.stale_S[s] = False
    if problem.has_nics:
        load_nics(problem, place_N, cut_S, share_R, work)
    soft = 0.0
    for p in range(num_replicas):
        nic_s = 0.0
        if problem.has_nics:
            for s in range(num_stages):
                nic_s = max(nic_s, work.pipe_2H[0, problem.host_D[place_N[s * num_replicas + p]]])
            nic_s *= 1.0 - 1.0 / share_R[p]
        if work.stale_R[p]:
            refresh_route(problem, place_N, cut_S, p, num_replicas, share_R[p] - 1, work)
            work.stale_R[p] = False
        # A changed depth or NIC moves the end though the pipeline is the same.
        if nic_s != work.nic_R[p]:
            work.nic_R[p] = nic_s
            work.end_R[p] = route_end(p, share_R[p] - 1, nic_s, work)
        soft += work.end_R[p]
    soft /= num_replicas
    step = 0.0
    optimizer = 0.0
    missing = 0.0
    for s in range(num_stages):
        end = 0.0
        for p in range(num_replicas):
            end = max(end, work.end_R[p] - work.drain_SR[s, p])
        reduction = reduction_seconds(
            problem, place_N, s * num_replicas, num_replicas, problem.reduced_KK[cut_S[s], cut_S[s + 1]],
            work.phase_S[s], work.adding_S[s], work.reduce_H,
        )  # fmt: skip
        soft += reduction / num_stages
        work.done_S[s] = end + reduction
        step = max(step, end + reduction)
        optimizer = max(optimizer, work.optimizer_S[s])
        missing += work.missing_S[s]
    for g in range(len(problem.tied_bytes_G)):
        reduction = 2.0 * work.tied_G[g] * problem.reduce_share
        step = max(step, after_tied(problem, cut_S, g, reduction, work.done_S))
    value = step + optimizer
    if problem.priced:
        price = price_devices(problem, place_N, num_stages * num_replicas)
        egress = egress_usd(problem, place_N, cut_S, share_R, work)
        value = value * price + egress
        soft = soft * price + egress
    penalty = 1.0 + OVERFLOW_PENALTY * missing
    if problem.has_pins:
        penalty += PIN_PENALTY * misplaced(problem, place_N, num_stages, num_replicas)
    return value * penalty, soft * penalty


@kernel(forceinline=True, allocates=False)
def price_devices(problem: StepProblem, place_N: Array, count: int) -> float:
    """Dollars a second of the devices at the first positions."""
    price = 0.0
    for i in range(count):
        price += problem.price_D[place_N[i]]
    return price


@kernel(allocates=False)
def misplaced(problem: StepProblem, place_N: Array, num_stages: int, num_replicas: int) -> int:
    """How many pinned devices do not serve their stage."""
    count = 0
    for i in range(len(place_N)):
        pin = problem.pin_D[place_N[i]]
        if pin >= 0 and i // num_replicas != pin:
            count += 1
    return count


@kernel(forceinline=True, allocates=False)
def refresh_tied(
    problem: StepProblem, place_N: Array, cut_S: Array, group: int, num_replicas: int, work: StepWork
) -> None:
    """One phase of the reduction of a tied weight, if a stage that uses it changed."""
    stage = 0
    for user in range(problem.tied_GM.shape[1]):
        stage = next_user(problem, cut_S, group, user, stage)
        if stage < 0:
            return
        if work.stale_S[stage]:
            count = tied_members(problem, place_N, cut_S, group, num_replicas, work.member_N)
            work.tied_G[group] = tied_phase(problem, work.member_N, count, problem.tied_bytes_G[group], work.count_H)
            return


@kernel(forceinline=True, allocates=False)
def tied_phase(problem: StepProblem, member_N: Array, count: int, num_bytes: float, count_H: Array) -> float:
    """Slowest link or NIC of one phase in which so many devices reduce a weight that all of them hold.

    Tied weights follow when their stages are through, so they have the NICs to themselves.
    """
    shard = num_bytes / max(count, 1)
    worst = 0.0
    for i in range(1, count):
        a = member_N[i]
        for j in range(i):
            b = member_N[j]
            worst = max(worst, problem.latency_DD[a, b] + shard * problem.reduce_rate_DD[a, b])
            worst = max(worst, problem.latency_DD[b, a] + shard * problem.reduce_rate_DD[b, a])
    if problem.has_nics:
        for i in range(count):
            count_H[problem.host_D[member_N[i]]] += 1
        for i in range(count):
            host = problem.host_D[member_N[i]]
            slower = max(problem.nic_out_H[host], problem.nic_in_H[host])
            worst = max(worst, shard * count_H[host] * (count - count_H[host]) * slower)
        for i in range(count):
            count_H[problem.host_D[member_N[i]]] = 0
    return worst
