"""Fits a cluster to a trace: device efficiencies, links, and what messages cost, each from the spans that show it.

1. Devices, by kind: factors of arithmetic rate and memory bandwidth, from forward, backward and optimizer spans.
2. Links, by rule of the cluster: latency and bandwidth from messages' transits, from the wire times of messages that
   others waited behind, and from reductions, which carry other sizes; where all messages have one size and none waits,
   only the sum is told, and the assumption splits it. The closed form of a
   reduction starts all members at once; what their unlike starts change is taken from a simulation, and the fit redone.
3. Messages: what a rank spends on taking one, and for what share of the wire time a sender goes on.

Legend of array suffixes: K kinds, L link rules, D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from statistics import median

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.calibration.least_squares import NOISE, Solution, fit_least_squares
from hetplanner.calibration.model import Calibration, Check, KindFit, LinkFit, apply_calibration, rule_name
from hetplanner.calibration.observations import Observations, Seen, observe_trace
from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.model import TransferCost
from hetplanner.cost.durations import durations_of
from hetplanner.cost.estimate import CostModel
from hetplanner.cost.links import LinkTable
from hetplanner.cost.reduction import batched_reduce_seconds
from hetplanner.cost.tables import CostTables
from hetplanner.plan.durations import Durations
from hetplanner.plan.model import Plan
from hetplanner.plan.reducers.groups import reduction_groups
from hetplanner.plan.trace import Trace
from hetplanner.schedule.order import make_schedule
from hetplanner.simulator.simulation import Summary, simulate, summarise_trace

# A link whose assumed latency is 0 may still have one: logarithms need a place to start.
LEAST_LATENCY_S = 1e-5
# A reduction is modelled by its slowest link, a transit by its own: it counts for less.
REDUCE_WEIGHT = 0.5
ROUNDS = 6
SETTLED = 2e-3
# With a link of its own for every pair a reduction cannot tell which one it waited for, and the fit would take minutes.
MOST_REDUCING = 100
TRACE_STEPS = 4
LEAST_MESSAGE_S = 1e-6


def calibrate_trace(trace: Trace, plan: Plan, *, when: str | None = None) -> Calibration:
    """Fits the plan's cluster to a trace of its run.

    Args:
        trace: measured (`Run.trace()`), read from a file, or simulated.
        plan: what was run; its cluster holds the assumptions.
        when: date that links are marked with; None takes today.

    Returns:
        The calibration, with the step and its terms measured and predicted before and after.

    Raises:
        InvalidInput: if the trace is empty or of another plan.
    """
    seen = observe_trace(trace, plan)
    if plan.problem.profile is not None:  # what is fitted are the rates that it goes before
        plan = plan.replace(problem=plan.problem.replace(profile=None))
    model = CostModel.of(plan.problem)
    kinds, tables = fit_kinds(plan, seen, model.tables)
    durations = durations_of(plan, tables)
    calibration = Calibration(
        cluster=plan.problem.cluster.name,
        source="trace",
        description=f"{plan.problem.workload.name} on {len(plan.ranks)} ranks, {trace.origin} trace",
        when=when or date.today().isoformat(),
        kinds=kinds,
    )
    schedule = make_schedule(plan)
    reduce_s = {group: s.seconds for group, s in seen.reduce.items() if s.seconds > 0}
    if len(_reducing_rules(plan, reduce_s)) > MOST_REDUCING:
        reduce_s = {}
    for _ in range(ROUNDS if reduce_s else 1):
        links, table = fit_links(plan, seen, reduce_s, CostModel(tables, model.links), durations)
        transfer, errors = fit_transfer(plan, seen, durations, table)
        calibration = calibration.replace(
            links=links,
            transfer=transfer,
            message_error=errors[0],
            # A share of wire times says nothing where those are not told.
            overlap_error=errors[1] if any(link.bandwidth_error is not None for link in links) else None,
        )
        # In the order of the plan that was run: on other links the scheduler might choose another one.
        after = simulate(fitted_plan(plan, calibration), steps=_trace_steps(plan), schedule=schedule)
        simulated = observe_trace(after, plan).reduce
        modelled = _reduction_seconds(plan, durations, table)
        wanted = {g: seen.reduce[g].seconds * float(modelled[g]) / simulated[g].seconds for g in reduce_s}
        settled = all(abs(wanted[g] / reduce_s[g] - 1.0) < SETTLED for g in reduce_s)
        reduce_s = wanted
        if settled:
            break
    before = simulate(plan, steps=_trace_steps(plan))
    return calibration.replace(checks=_checks(_terms(trace), _terms(before), _terms(after)))


def _trace_steps(plan: Plan) -> int:
    """Steps to simulate: with several fragments a whole round, so that each has its turn."""
    return TRACE_STEPS if plan.fragments == 1 else TRACE_STEPS - 1 + plan.local_steps


def fitted_plan(plan: Plan, calibration: Calibration) -> Plan:
    """The same plan on the calibrated cluster."""
    cluster = apply_calibration(calibration, plan.problem.cluster)
    return plan.replace(problem=plan.problem.replace(cluster=cluster))


def fit_kinds(plan: Plan, seen: Observations, tables: CostTables) -> tuple[tuple[KindFit, ...], CostTables]:
    """Efficiency and memory bandwidth of every kind of device, and the tables with them."""
    cluster = plan.problem.cluster
    used = [cluster.device_index(d) for d in plan.ranks]
    kinds = sorted({cluster.devices[d].kind for d in used})
    kind_D = np.array([kinds.index(d.kind) if d.kind in kinds else len(kinds) for d in cluster.devices])
    work, weights = _work(plan, seen)
    measured = np.array([s.seconds for *_, s in work])

    def scaled(x: FloatArray) -> CostTables:
        rate_K, memory_K = np.append(x[: len(kinds)], 0.0), np.append(x[len(kinds) :], 0.0)
        return tables.with_devices(tables.devices.scaled(np.exp(rate_K)[kind_D], np.exp(memory_K)[kind_D]))

    def log_ratio(x: FloatArray) -> FloatArray:
        durations = durations_of(plan, scaled(x))
        predicted = [getattr(durations, name)[index] for name, index, _ in work]
        return np.log(np.maximum(predicted, 1e-12) / measured)

    found = fit_least_squares(log_ratio, 2 * len(kinds), weights=weights)
    fits = []
    for k, kind in enumerate(kinds):
        spec = resolve_device(cluster.devices[next(d for d in used if cluster.devices[d].kind == kind)])
        factor, memory = np.exp(found.value[[k, len(kinds) + k]])
        count = sum(s.count for name, index, s in work if kind_D[used[_rank_of(plan, name, index)]] == k)
        fits.append(
            KindFit(
                kind=kind,
                dtype=plan.problem.workload.dtype,
                efficiency=float(spec.efficiency * factor),
                efficiency_error=found.error[k],
                memory_bandwidth=float(spec.memory_bandwidth_bytes_per_s * memory),
                memory_bandwidth_error=found.error[len(kinds) + k],
                observations=max(count, 1),
            )
        )
    return tuple(fits), scaled(found.value)


def _work(plan: Plan, seen: Observations) -> tuple[list[tuple[str, int, Seen]], FloatArray]:
    """Every observed piece of work as (field of Durations, index there, what was seen), and its weight in the fit.

    A piece weighs as the square root of its share of its rank's time, so that a step comes out right where the model
    cannot meet every piece.
    """
    work = [("forward_s_C", plan.chunk_index[chunk], s) for chunk, s in seen.forward.items()]
    work += [("backward_s_C", plan.chunk_index[chunk], s) for chunk, s in seen.backward.items()]
    work += [("optimizer_s_N", rank, s) for rank, s in seen.optimizer.items()]
    work = [item for item in work if item[2].seconds > 0]
    time = np.array([s.seconds * s.count for *_, s in work])
    return work, np.sqrt(np.maximum(time / time.max(), 1e-4))


def _rank_of(plan: Plan, name: str, index: int) -> int:
    return plan.chunks[index][0] if name.endswith("_C") else index


def fit_links(
    plan: Plan, seen: Observations, reduce_s: Mapping[int, float], model: CostModel, durations: Durations
) -> tuple[tuple[LinkFit, ...], LinkTable]:
    """Latency and bandwidth of every rule of the cluster that messages or reductions show, and the links with them.

    Args:
        plan: what was run.
        seen: its observations.
        reduce_s: seconds of reductions, by the keys of `Observations.reduce`.
        model: cost model with fitted devices, and the assumed links.
        durations: by it.
    """
    cluster = plan.problem.cluster
    device_N = [cluster.device_index(d) for d in plan.ranks]
    rule_DD = cluster.link_index_DD
    # Others' messages pass the same NICs in between, so there a wire's own time is not seen.
    wires = {} if model.links.has_nics else seen.wire
    moved = [
        (device_N[a], device_N[b], size, latencies, s)
        for part, latencies in ((seen.transit, 1.0), (wires, 0.0))
        for (a, b, size), s in part.items()
        if s.seconds > 0
    ]
    rules = sorted({int(rule_DD[a, b]) for a, b, *_ in moved} | _reducing_rules(plan, reduce_s))
    if not rules:
        return (), model.links
    bandwidth_L = np.array([link.bandwidth for link in cluster.links])
    latency_L = np.array([link.latency for link in cluster.links])
    latency_L[rules] = np.maximum(latency_L[rules], LEAST_LATENCY_S)
    measured = np.array([s.seconds for *_, s in moved] + list(reduce_s.values()))
    weights = np.array([1.0] * len(moved) + [REDUCE_WEIGHT] * len(reduce_s))
    source, target = (np.array([item[end] for item in moved], dtype=np.int64) for end in (0, 1))
    size, latencies = (np.array([item[part] for item in moved], dtype=np.float64) for part in (2, 3))

    def scaled(x: FloatArray) -> LinkTable:
        latency, seconds = (np.tile(values_L, (*x.shape[:-1], 1)) for values_L in (latency_L, 1.0 / bandwidth_L))
        latency[..., rules] *= np.exp(x[..., : len(rules)])
        seconds[..., rules] *= np.exp(-x[..., len(rules) :])
        return model.links.with_rules(latency, seconds)

    def log_ratio(x: FloatArray) -> FloatArray:
        links = scaled(x)
        took = latencies * links.latency_s(source, target) + size * links.seconds_per_byte(source, target)
        reduced = _reduction_seconds(plan, durations, links) if reduce_s else []
        predicted = np.concatenate((took, *(reduced[group][..., None] for group in reduce_s)), axis=-1)
        return np.asarray(np.log(np.maximum(predicted, 1e-12) / measured))

    ties = _both_ways(plan, rules)
    found = fit_least_squares(log_ratio, 2 * len(rules), weights=weights, ties=ties, batched=True)
    touched = {i % len(rules) for i, told in enumerate(found.touched) if told}
    touched |= {j % len(rules) for pair in ties if {i % len(rules) for i in pair} & touched for j in pair}
    counts = {rule: sum(s.count for a, b, _, _, s in moved if rule_DD[a, b] == rule) for rule in rules}
    fits = tuple(
        _link_fit(plan, rules, i, latency_L, found, max(counts[rule], 1))
        for i, rule in enumerate(rules)
        if i in touched
    )
    return fits, scaled(found.value)


def _both_ways(plan: Plan, rules: list[int]) -> list[tuple[int, int]]:
    """Pairs of parameters of the two directions between the same ends: likely to be wrong alike.

    A reduction waits for the slower direction alone, so its seconds do not tell the other.
    """
    names = [rule_name(plan.problem.cluster, rule) for rule in rules]
    place = {name: i for i, name in enumerate(names)}
    pairs = [(i, place.get((between, b, a), i)) for i, (between, a, b) in enumerate(names)]
    return [(i + part, j + part) for i, j in pairs if i < j for part in (0, len(rules))]


def _reduction_seconds(plan: Plan, durations: Durations, links: LinkTable) -> list[FloatArray]:
    """Modelled seconds of every reduction group, with the batch axis of the links."""
    own_S, tied = batched_reduce_seconds(plan, durations, links)
    rest = iter(tied)
    return [np.asarray(next(rest)[0] if g.tied else own_S[..., g.stages[0]]) for g in reduction_groups(plan)]


def _reducing_rules(plan: Plan, groups: Iterable[int]) -> set[int]:
    """Rules between the members of reductions."""
    cluster, known = plan.problem.cluster, reduction_groups(plan)
    rules: set[int] = set()
    for group in groups:
        devices = [cluster.device_index(plan.ranks[rank]) for rank in known[group].ranks]
        rules |= {int(cluster.link_index_DD[a, b]) for a in devices for b in devices if a != b}
    return rules


def _link_fit(
    plan: Plan, rules: list[int], i: int, latency_L: FloatArray, found: Solution, observations: int
) -> LinkFit:
    cluster = plan.problem.cluster
    between, start, end = rule_name(cluster, rules[i])
    return LinkFit(
        between=between,
        from_name=start,
        to_name=end,
        latency=float(latency_L[rules[i]] * np.exp(found.value[i])),
        latency_error=found.error[i],
        bandwidth=float(cluster.links[rules[i]].bandwidth * np.exp(found.value[len(rules) + i])),
        bandwidth_error=found.error[len(rules) + i],
        observations=observations,
    )


def fit_transfer(
    plan: Plan, seen: Observations, durations: Durations, links: LinkTable
) -> tuple[TransferCost | None, tuple[float | None, float | None]]:
    """What a message costs the rank that takes it, and for what share of the wire time its sender goes on.

    Returns:
        None where no message was seen; and the standard errors of both, the message's as a share of it.
    """
    cluster = plan.problem.cluster
    device_N = [cluster.device_index(d) for d in plan.ranks]
    if not seen.handing:
        return cluster.transfer, (None, None)
    before = cluster.transfer or TransferCost()
    taking = [max(s.seconds - float(durations.decode_s_N[rank]), 0.0) for rank, s in seen.taking.items()]
    message_s = median(taking) if taking else before.message
    wire, held = [], []
    for (rank, peer, size), s in seen.handing.items():
        wire.append(size * links.seconds_per_byte_DD[device_N[rank], device_N[peer]])
        held.append(s.seconds - float(durations.encode_s_N[rank]) - message_s)
    share, error = _slope(np.array(wire), np.array(held))
    message_error = float(np.std(taking) / message_s / np.sqrt(len(taking))) if taking and message_s > 0 else None
    message_s = message_s if message_s >= LEAST_MESSAGE_S else 0.0
    return before.replace(message=message_s, overlap=1.0 - share), (message_error, error)


def _slope(wire_s: FloatArray, held_s: FloatArray) -> tuple[float, float | None]:
    """Share of the wire time for which senders are held up (0 to 1), and its standard error."""
    total = float(wire_s @ wire_s)
    if total == 0.0:
        return 0.0, None
    share = float(np.clip(wire_s @ held_s / total, 0.0, 1.0))
    spread = np.sqrt(np.mean((held_s - share * wire_s) ** 2) / total)
    return (share if share > NOISE**2 else 0.0), float(spread)


def _checks(measured: dict[str, float], before: dict[str, float], after: dict[str, float]) -> tuple[Check, ...]:
    """The step and its terms: measured, and simulated on the assumed and on the calibrated cluster."""
    return tuple(
        Check(label=name, measured_s=measured[name], before_s=before[name], after_s=after[name]) for name in measured
    )


def _terms(trace: Trace) -> dict[str, float]:
    """The step and its terms, the median over all steps whose beginning (the end of the step before) is known."""
    steps = {span.step for span in trace.spans}
    summaries: list[Summary] = [
        summarise_trace(Trace(tuple(s for s in trace.spans if step - 1 <= s.step <= step), trace.rank_labels))
        for step in sorted(step for step in steps if step - 1 in steps) or sorted(steps)
    ]
    names = summaries[0].terms
    return {"step": median(s.step_s for s in summaries)} | {
        name: median(s.terms[name] for s in summaries) for name in names
    }
