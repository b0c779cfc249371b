"""What if: changes of the current plan whose effect shows at once, without a search."""

from itertools import pairwise
from typing import Any

import param

from hetplanner.cluster.model import Cluster
from hetplanner.codecs.spec import CODEC_NAMES, Codec
from hetplanner.errors import HetplannerError
from hetplanner.plan.model import Plan
from hetplanner.planners.variants.whatif import (
    Change,
    ChangeCodec,
    ChangeDegree,
    ChangeLink,
    Changes,
    DropDevice,
    WhatIf,
)
from hetplanner.ui.jobs.compute import ComputeWorker, Ticket
from hetplanner.ui.plan.models.why import bottleneck_text
from hetplanner.ui.shell.models.session import Session
from hetplanner.ui.shell.models.texts import change_text, seconds_text
from hetplanner.units import short_bytes, short_rate, short_seconds
from hetplanner.workload.tensor_degrees import DEGREES

EVERYWHERE, REDUCTIONS = "all links between stages", "gradient reductions"
MBIT_BYTES_PER_S = 1e6 / 8
AS_PLANNED = "as planned"
DEFAULT_RATIO = 10.0
SAME = 1e-6
"""A number that a person leaves as it was comes back rounded."""

SitePair = tuple[str, str]


class WhatIfModel(param.Parameterized):
    """Changes of `plan` and what they would do. Fields follow what is chosen; typing into one is a change."""

    plan = param.ClassSelector(class_=Plan, default=None)
    changes = param.ClassSelector(class_=Changes, default=Changes())
    outcome = param.ClassSelector(class_=WhatIf, default=None, doc="The plan under the changes; None without any.")
    error = param.String(default="")
    waiting = param.Boolean(default=False)

    link: Any = param.Selector(default="", objects=[""])
    bandwidth_mbit_s = param.Number(default=None, allow_None=True, bounds=(1e-5, 8e9))
    latency_ms = param.Number(default=None, allow_None=True, bounds=(0.0, 1e9))
    where: Any = param.Selector(default=EVERYWHERE, objects=[EVERYWHERE, REDUCTIONS])
    codec: Any = param.Selector(default="none", objects=list(CODEC_NAMES))
    ratio = param.Number(default=DEFAULT_RATIO, bounds=(1.0, 1e5))
    degree: Any = param.Selector(default=AS_PLANNED, objects=[AS_PLANNED, *map(str, DEGREES)])

    def __init__(self, session: Session, compute: ComputeWorker, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._compute = session, compute
        self._ticket: Ticket | None = None
        self._asked = Changes()
        self._pairs: dict[str, SitePair] = {}
        self._loading = False
        self._cluster: Cluster | None = None
        self.param.watch(self._plan_changed, "plan")
        self.param.watch(self._load_link, "link")
        self.param.watch(self._link_edited, ["bandwidth_mbit_s", "latency_ms"])
        self.param.watch(self._load_codec, "where")
        self.param.watch(self._codec_edited, ["codec", "ratio"])
        self.param.watch(self._degree_edited, "degree")

    # -- the plan they are about ------------------------------------------------------------------

    def _plan_changed(self, *_: Any) -> None:
        plan = self.plan
        if plan is not None and self._cluster not in (None, plan.problem.cluster):
            self.changes = Changes()  # they were about another cluster
        self._cluster = plan.problem.cluster if plan is not None else self._cluster
        pairs = site_pairs(plan) if plan is not None else []
        self._pairs = {pair_text(pair): pair for pair in pairs}
        self._loading = True
        self._offer("link", [*self._pairs] or [""], self._worst_link())
        sent = [pair_text(pair) for pair in _sending_pairs(plan)] if plan is not None else []
        self._offer("where", [EVERYWHERE, *sent, REDUCTIONS], EVERYWHERE)
        self._loading = False
        self._load_all()
        self._evaluate()

    def _offer(self, name: str, objects: list[str], default: str) -> None:
        self.param[name].objects = objects
        if getattr(self, name) not in objects:
            setattr(self, name, default)
        self.param.trigger(name)

    def _worst_link(self) -> str:
        """The link that holds the plan back, if one does; else the first."""
        plan = self.plan
        if plan is None or not self._pairs:
            return ""
        name = plan.estimate.bottleneck.name if plan.estimate is not None else ""
        pair = next((pair for pair in _sending_pairs(plan) if name in _link_names(plan, pair)), None)
        return pair_text(pair) if pair is not None else next(iter(self._pairs))

    @property
    def droppable(self) -> list[str]:
        """Devices that the plan uses and that are not dropped yet, in the order of their ranks."""
        gone = {change.device for change in self.changes.changes if isinstance(change, DropDevice)}
        return [device for device in self.plan.ranks if device not in gone] if self.plan is not None else []

    # -- changes ----------------------------------------------------------------------------------

    def drop(self, device: str) -> None:
        """The plan without a device."""
        if device in self.droppable:
            self._set(Changes(changes=(*self.changes.changes, DropDevice(device=device))))

    def _load_link(self, *_: Any) -> None:
        pair = self._pairs.get(self.link)
        if self._loading:
            return
        value = self._link_now(pair) if pair is not None else None
        self._loading = True
        if value is None:
            self.param.update(bandwidth_mbit_s=None, latency_ms=None)
        else:
            self.param.update(
                bandwidth_mbit_s=_rounded(value[0] / MBIT_BYTES_PER_S), latency_ms=_rounded(value[1] * 1e3)
            )
        self._loading = False

    def _link_now(self, pair: SitePair) -> tuple[float, float] | None:
        """Bandwidth and latency between two sites under the changes."""
        value = self._link_before(pair)
        for change in self.changes.changes:
            if value is not None and isinstance(change, ChangeLink) and change.sites == pair:
                value = (change.bandwidth or value[0], value[1] if change.latency is None else change.latency)
        return value

    def _link_before(self, pair: SitePair) -> tuple[float, float] | None:
        assert self.plan is not None
        rules = [k for k in self.plan.problem.cluster.site_links if (k.from_site, k.to_site) == pair]
        return (rules[-1].bandwidth, rules[-1].latency) if rules else None

    def _link_edited(self, *_: Any) -> None:
        pair = self._pairs.get(self.link)
        if self._loading or pair is None:
            return
        before = self._link_before(pair)
        if before is None or self.bandwidth_mbit_s is None or self.latency_ms is None:
            return
        new = {
            name: value
            for name, value, old in (
                ("bandwidth", self.bandwidth_mbit_s * MBIT_BYTES_PER_S, before[0]),
                ("latency", self.latency_ms / 1e3, before[1]),
            )
            if abs(value - old) > SAME * max(abs(old), abs(value)) + 1e-12 and value != _as_shown(name, old)
        }
        others = tuple(c for c in self.changes.changes if not (isinstance(c, ChangeLink) and c.sites == pair))
        with self._session.reporting(self._load_link):
            mine = (ChangeLink.model_validate({"sites": pair, **new}),) if new else ()
            self._set(Changes(changes=(*others, *mine)))

    def _load_codec(self, *_: Any) -> None:
        if self._loading:
            return
        mine = [c for c in self.changes.changes if isinstance(c, ChangeCodec) and self._place(c) == self.where]
        codec = mine[-1].codec if mine else self._codec_before()
        self._loading = True
        self.param.update(
            codec=codec.name if codec.name in CODEC_NAMES else "none",
            ratio=codec.ratio if codec.name == "topk" else self.ratio,
        )
        self._loading = False

    def _codec_before(self) -> Codec:
        """What the plan has there now; of several the most frequent one's stand-in is the first."""
        if self.plan is None:
            return Codec()
        if self.where == REDUCTIONS:
            return self.plan.stages[0].reduce_codec
        pair = self._pairs.get(self.where)
        site = self.plan.problem.cluster.site_of
        for rule in self.plan.link_codecs:
            ends = {site(rule.from_device).name, site(rule.to_device).name}
            if rule.role == "activation" and (pair is None or ends == set(pair)):
                return rule.codec
        return Codec()

    def _load_degree(self) -> None:
        mine = [c.degree for c in self.changes.changes if isinstance(c, ChangeDegree)]
        self._loading = True
        self.degree = str(mine[-1]) if mine else AS_PLANNED
        self._loading = False

    def _degree_edited(self, *_: Any) -> None:
        if self._loading or self.plan is None:
            return
        others = tuple(c for c in self.changes.changes if not isinstance(c, ChangeDegree))
        mine = () if self.degree == AS_PLANNED else (ChangeDegree.model_validate({"degree": int(self.degree)}),)
        self._set(Changes(changes=(*others, *mine)))

    def _place(self, change: ChangeCodec) -> str:
        if change.of == "reductions":
            return REDUCTIONS
        return EVERYWHERE if change.sites is None else pair_text(change.sites)

    def _codec_edited(self, *events: param.parameterized.Event) -> None:
        if self._loading or self.plan is None:
            return
        if self.codec != "topk" and all(event.name == "ratio" for event in events):
            return
        codec = Codec(name=self.codec, ratio=float(self.ratio) if self.codec == "topk" else 1.0)
        others = tuple(
            c for c in self.changes.changes if not (isinstance(c, ChangeCodec) and self._place(c) == self.where)
        )
        of = "reductions" if self.where == REDUCTIONS else "messages"
        mine = ChangeCodec.model_validate({"of": of, "sites": self._pairs.get(self.where), "codec": codec})
        self._set(Changes(changes=(*others, mine)))

    def remove(self, index: int) -> None:
        """Takes one change back."""
        left = tuple(change for i, change in enumerate(self.changes.changes) if i != index)
        self._set(Changes(changes=left))

    def clear(self) -> None:
        """The plan as it is."""
        self._set(Changes())

    def restore(self, data: object) -> None:
        """Changes that the address remembers; what does not fit the plan is left out."""
        with self._session.reporting():
            self._set(Changes.of(data))

    def _set(self, changes: Changes) -> None:
        # A device is named as in the plan, so it is dropped before groups change; codecs are those of the new groups.
        self.changes = Changes(changes=tuple(sorted(changes.changes, key=_turn)))
        self._load_all()
        self._evaluate()

    def _load_all(self) -> None:
        self._load_link()
        self._load_codec()
        self._load_degree()

    # -- what comes of it -------------------------------------------------------------------------

    def _evaluate(self) -> None:
        self._ticket = None
        if self.plan is None or not self.changes.changes:
            self.param.update(outcome=None, error="", waiting=False)
            return
        self.waiting = True
        self._asked = self.changes
        fields = {"changes": self.changes.to_data()}
        slot = f"{self._session.id} what if"
        self._ticket = self._compute.ask(slot, "evaluate", self.plan, fields, self._session.answered)

    def poll(self) -> None:
        """Takes the answer when it is there."""
        ticket = self._ticket
        if ticket is None or not ticket.done or self.plan is None:
            return
        self._ticket = None
        outcome, error = None, ticket.error
        if ticket.result is not None:
            try:
                outcome = WhatIf.from_data(ticket.result, self.plan, self._asked)
            except HetplannerError as failure:
                error = str(failure)
        self.param.update(outcome=outcome, error=error, waiting=False)

    # -- in words ---------------------------------------------------------------------------------

    @property
    def change_texts(self) -> list[str]:
        """The changes, one line each."""
        return [change_words(change) for change in self.changes.changes]

    @property
    def headline(self) -> tuple[str, str]:
        """The new step time, and how much longer or shorter than it is now; dashes without an outcome."""
        if self.outcome is None or self.plan is None or self.plan.estimate is None:
            return "–", ""
        new, old = self.outcome.plan.estimate, self.plan.estimate
        assert new is not None
        return seconds_text(new.step_s), f"{change_text(new.step_s, old.step_s)} against {seconds_text(old.step_s)} now"

    @property
    def better(self) -> bool | None:
        """Whether the step gets shorter; None if it stays (within half a per cent) or nothing is known."""
        if self.outcome is None or self.plan is None or self.plan.estimate is None:
            return None
        new, old = self.outcome.plan.estimate, self.plan.estimate.step_s
        assert new is not None
        return None if abs(new.step_s - old) < 0.005 * old else new.step_s < old

    @property
    def memory(self) -> str:
        """The device that the changed plan fills most, and what the plan's fullest one holds now."""
        if self.outcome is None or self.plan is None or self.plan.estimate is None:
            return ""
        return f"{fullest_text(self.outcome.plan)}; now {fullest_text(self.plan)}"

    @property
    def bottleneck(self) -> str:
        """What would hold the changed plan back."""
        estimate = self.outcome.plan.estimate if self.outcome is not None else None
        return "" if estimate is None else bottleneck_text(estimate)


def _turn(change: Change) -> int:
    return 0 if isinstance(change, DropDevice) else 1 if isinstance(change, ChangeDegree) else 2


def fullest_text(plan: Plan) -> str:
    """'3.15 GB of 29.8 GB on h0-0(×2)': where a plan comes nearest to its memory."""
    assert plan.estimate is not None
    tight = max(plan.estimate.devices, key=lambda d: d.peak_bytes / d.limit_bytes)
    sizes = f"{short_bytes(tight.peak_bytes)} of {short_bytes(tight.limit_bytes)}"
    return f"{sizes} on {plan.problem.worker_name(tight.device)}"


def change_words(change: Change) -> str:
    """A change as a person says it."""
    if isinstance(change, DropDevice):
        return f"without {change.device}"
    if isinstance(change, ChangeDegree):
        return "each device alone" if change.degree == 1 else f"groups of {change.degree} devices"
    if isinstance(change, ChangeLink):
        parts = [short_rate(change.bandwidth)] if change.bandwidth is not None else []
        parts += [f"{short_seconds(change.latency)} latency"] if change.latency is not None else []
        return f"{pair_text(change.sites)}: {', '.join(parts)}"
    place = REDUCTIONS if change.of == "reductions" else EVERYWHERE if change.sites is None else pair_text(change.sites)
    return f"{place}: {'no codec' if change.codec.name == 'none' else change.codec}"


def pair_text(pair: SitePair) -> str:
    """'Tokyo ↔ London', or 'inside Tokyo'."""
    return f"inside {pair[0]}" if pair[0] == pair[1] else f"{pair[0]} ↔ {pair[1]}"


def site_pairs(plan: Plan) -> list[SitePair]:
    """Pairs of sites with a link (each once, in the cluster's order), those that the plan's stages use first."""
    linked = {(k.from_site, k.to_site) for k in plan.problem.cluster.site_links}
    names = [site.name for site in plan.problem.cluster.sites]
    every = [(a, b) for i, a in enumerate(names) for b in names[i:] if (a, b) in linked]
    sending = [pair for pair in _sending_pairs(plan) if pair in linked]
    return [*sending, *(pair for pair in every if pair not in set(sending))]


def _sending_pairs(plan: Plan) -> list[SitePair]:
    """Pairs of sites between which stages send, in the cluster's order of their names."""
    cluster = plan.problem.cluster
    order = {site.name: i for i, site in enumerate(cluster.sites)}
    pairs: dict[SitePair, None] = {}
    for route in plan.routes:
        path = [cluster.site_of(plan.stages[s].replicas[r][0]).name for s, r in enumerate(route.replicas)]
        for one, two in pairwise(path):
            pairs[(one, two) if order[one] <= order[two] else (two, one)] = None
    return sorted(pairs, key=lambda pair: (order[pair[0]], order[pair[1]]))


def _link_names(plan: Plan, pair: SitePair) -> set[str]:
    """What the estimate may call the links of a pair of sites, and those of single devices between them."""
    cluster = plan.problem.cluster
    names = {f"links inside {pair[0]}"} if pair[0] == pair[1] else set()
    names |= {f"links {a} ↔ {b}" for a, b in (pair, pair[::-1]) if a != b}
    for route in plan.routes:
        path = [plan.stages[s].replicas[r][0] for s, r in enumerate(route.replicas)]
        for one, two in pairwise(path):
            if {cluster.site_of(one).name, cluster.site_of(two).name} == set(pair):
                names.add(f"{one} ↔ {two}")
    return names


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _as_shown(name: str, value: float) -> float:
    """A value after it was shown in its field, rounded."""
    if name == "bandwidth":
        return _rounded(value / MBIT_BYTES_PER_S) * MBIT_BYTES_PER_S
    return _rounded(value * 1e3) / 1e3
