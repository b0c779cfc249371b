"""The Simulate page: one step of the current plan, and plans derived from it by a few controls."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import param

from hetplanner.codecs.spec import CODEC_NAMES
from hetplanner.errors import InvalidInput
from hetplanner.plan.elastic.model import ElasticPlan
from hetplanner.plan.model import Plan
from hetplanner.planners.variants.derive import Derivation, changes_text, derived_from_data
from hetplanner.schema import parse_json
from hetplanner.simulator.replay import Replay
from hetplanner.ui.jobs.compute import Ticket
from hetplanner.ui.shell.models.session import Session

AS_PLANNED = "as planned"
EVERYWHERE, NOWHERE = "everywhere", "nowhere"
SCHEDULES = ("gpipe", "1f1b", "interleaved")
FIELDS = ("schedule", "micro_batch", "in_flight", "recompute", "messages", "reductions", "ratio")
MOST_SIZES = 24
MOST_RANKS = 24
"""Plans of more ranks open on their first pipeline."""
MOST_DEPTH_TEXT = 4000
MAX_REMEMBERED = 1000
"""Characters of changed controls that an address holds."""
DEFAULT_RATIO = 10.0


class SimulationWorker(Protocol):
    """Where questions go; `hetplanner.ui.jobs.compute.ComputeWorker` in the app."""

    def ask(
        self,
        slot: str,
        what: str,
        plan: Plan,
        fields: Any = None,
        answered: Callable[[], object] = ...,
    ) -> Ticket:
        """Asks a question; see `hetplanner.ui.jobs.compute`."""
        ...


class SimulateModel(param.Parameterized):
    """What is simulated (`shown`, `replay`), and what it is compared with (`original`, `base`).

    Settings are as a person sees them; `in_flight` is one number or one a stage. A wrong one is explained in `errors`,
    and what was simulated last stays.
    """

    schedule: Any = param.Selector(default="1f1b", objects=list(SCHEDULES))
    micro_batch: Any = param.Selector(default=1, objects=[1])
    in_flight = param.String(default="")
    recompute: Any = param.Selector(default=AS_PLANNED, objects=[AS_PLANNED, NOWHERE, EVERYWHERE])
    messages: Any = param.Selector(default=AS_PLANNED, objects=[AS_PLANNED, *CODEC_NAMES])
    reductions: Any = param.Selector(default=AS_PLANNED, objects=[AS_PLANNED, *CODEC_NAMES])
    ratio = param.Number(default=DEFAULT_RATIO, bounds=(1.0, 1e5), doc="Of top-k: elements for one that is kept.")
    pipeline: Any = param.Selector(default=None, objects=[None], allow_None=True, doc="None: all ranks.")

    edited = param.String(default="", doc="Controls that differ from the current plan, for the page's address.")
    original = param.ClassSelector(class_=Plan, default=None)
    shown = param.ClassSelector(class_=Plan, default=None)
    busy = param.Boolean(default=False)
    choices_changed = param.Event(doc="Sizes, schedules and pipelines are those of another plan.")
    shown_changed = param.Event()
    errors_changed = param.Event()
    perfetto_ready = param.Event()

    def __init__(self, session: Session, compute: Callable[[], SimulationWorker], **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self._found: tuple[Plan, Replay, list[int]] | None = None
        self.replay: Replay | None = None
        self.room: list[int] = []
        self.errors: dict[str, str] = {}
        self.perfetto = ""
        self._compute = compute
        self._ticket: Ticket | None = None
        self._asked_for: tuple[Plan, Derivation] | None = None
        self._trace_ticket: Ticket | None = None
        self._loading = False
        self._started = False
        self._depths: tuple[int, ...] | None = None
        self._last_field = ""
        self._own: dict[str, str] = {}
        self._due = ""
        session.param.watch(self._take_plan, "plan")
        self.param.watch(self._changed, list(FIELDS))
        self.param.watch(self._note_edits, [*FIELDS, "pipeline"])

    # -- the current plan -------------------------------------------------------------------------

    def _take_plan(self, event: param.parameterized.Event) -> None:
        """A plan from elsewhere; one that was saved here keeps its original beside it."""
        if event.new is None or event.new is self.shown:
            return
        if event.new == self.shown:  # it was kept, and read again
            self.shown = event.new
            self.param.trigger("shown_changed")
            return
        if self.original is not None:
            self._due = ""  # of another plan
        self._found = self.replay = None
        self.original, self.shown = event.new, None
        self._set_controls(event.new)
        self.param.trigger("shown_changed")
        self.ask()

    def start(self) -> None:
        """From now on plans are simulated as they come; before, no page showed them."""
        if not self._started:
            self._started = True
            self.ask()

    def reset(self) -> None:
        """Back to the plan as it was found."""
        if self.original is not None:
            self._set_controls(self.original)
            self.ask()

    def _set_controls(self, plan: Plan) -> None:
        workload = plan.problem.workload
        sizes = batch_sizes(workload.global_batch, len(plan.routes), workload.micro_batch)
        if workload.program is not None and workload.program.per_sample is None:
            sizes = [workload.micro_batch]  # of an old capture the calls for other sizes are not known
        with self._quietly():
            self.param.micro_batch.objects = sizes
            self.param.schedule.objects = ["interleaved"] if plan.is_interleaved else list(SCHEDULES)
            pipelines: list[int | None] = [None, *range(len(plan.routes))] if len(plan.routes) > 1 else [None]
            self.param.pipeline.objects = pipelines
            self.param.trigger("choices_changed")
            self.param.update(
                schedule=plan.schedule, micro_batch=workload.micro_batch, in_flight=depths_text(plan),
                recompute=AS_PLANNED, messages=AS_PLANNED, reductions=AS_PLANNED, ratio=DEFAULT_RATIO,
                pipeline=0 if len(plan.ranks) > MOST_RANKS and len(plan.routes) > 1 else None,
            )  # fmt: skip
            self._depths = None
        self._own = self._controls()
        self.edited = self._due
        self._set_errors({})

    # -- the page's address remembers the controls ------------------------------------------------

    def _controls(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in (*FIELDS, "pipeline")}

    def _note_edits(self, *_: param.parameterized.Event) -> None:
        if self._loading or self.original is None:
            return
        edits = {name: text for name, text in self._controls().items() if text != self._own[name]}
        if self._depths is None:
            edits.pop("in_flight", None)  # it follows from the others
        text = json.dumps(edits, separators=(",", ":")) if edits else ""
        self.edited = text if len(text) <= MAX_REMEMBERED else ""

    def restore(self, text: str) -> None:
        """Sets the controls as `edited` tells, once the plan itself is simulated; what is not understood is ignored."""
        self._due = self.edited = text
        if self._found is not None:
            self._restore_due()

    def _restore_due(self) -> None:
        text, self._due = self._due, ""
        try:
            edits = parse_json(text.encode(), "simulate") if text else {}
        except InvalidInput:
            edits = {}
        for name in (*FIELDS, "pipeline"):  # a schedule brings its depths
            if isinstance(edits, dict) and isinstance(edits.get(name), str):
                self.edit(name, edits[name])
        self._note_edits()

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        self._loading = True
        try:
            yield
        finally:
            self._loading = False

    # -- controls ---------------------------------------------------------------------------------

    def edit(self, name: str, raw: str) -> None:
        """Takes what a person chose or typed; what cannot be is explained beside its field."""
        if name not in (*FIELDS, "pipeline"):
            return
        law = self.param[name]
        try:
            if isinstance(law, param.Selector):
                setattr(self, name, {str(value): value for value in law.objects}[raw])
            else:
                setattr(self, name, float(raw) if name == "ratio" else raw[:MOST_DEPTH_TEXT])
        except (KeyError, ValueError):
            most = f"from 1 to {1e5:,.0f}" if name == "ratio" else "one of those listed"
            self._set_errors({name: f"must be {most}, got {raw!r:.40}"})

    def _changed(self, *events: param.parameterized.Event) -> None:
        if self._loading or self.original is None:
            return
        self._last_field = events[-1].name
        if self._last_field == "in_flight":
            try:
                self._depths = parse_depths(self.in_flight)
            except ValueError as error:
                self._set_errors({"in_flight": str(error)})
                return
        elif self._last_field == "schedule" and self.schedule != self.original.schedule:
            self._depths = None  # depths of one schedule mean little in another
        if self._last_field == "ratio" and "topk" not in (self.messages, self.reductions):
            return
        self.ask()

    def shift_depths(self, by: int) -> None:
        """Every stage holds so many micro-batches more (or fewer; at least one)."""
        if self.shown is not None:
            depths = [max(1, stage.in_flight + by) for stage in self.shown.stages]
            self.in_flight = " ".join(map(str, depths))

    def fill_memory(self) -> None:
        """As many micro-batches in flight as the devices have room for, and a pipeline has."""
        if self.shown is not None and self.room:
            most = max(route.micro_batches for route in self.shown.routes) * len(self.shown.routes)
            self.in_flight = " ".join(str(max(1, min(n, most))) for n in self.room)

    def wanted(self) -> Derivation:
        """What the controls say, as changes of the original."""
        plan = self.original
        data: dict[str, Any] = {}
        if plan is not None:
            if self.schedule != plan.schedule:
                data["schedule"] = self.schedule
            if self.micro_batch != plan.problem.workload.micro_batch:
                data["micro_batch"] = self.micro_batch
        if self._depths is not None:
            data["in_flight"] = list(self._depths)
        if self.recompute != AS_PLANNED:
            data["recompute"] = self.recompute == EVERYWHERE
        for name in ("messages", "reductions"):
            codec = getattr(self, name)
            if codec != AS_PLANNED:
                data[name] = {"name": codec} | ({"ratio": float(self.ratio)} if codec == "topk" else {})
        return Derivation.of(data)

    # -- simulating -------------------------------------------------------------------------------

    def ask(self) -> None:
        """Has the plan that the controls say simulated; the answer comes with `poll`."""
        if self.original is None or not self._started:
            return
        with self.session.reporting():
            wanted = self.wanted()
            if wanted.is_empty and self._found is not None:  # known; an answer under way is to older controls
                self._ticket, self.busy = None, False
                self._show(*self._found)
                return
            fields, self._asked_for = {"wanted": wanted.to_data()}, (self.original, wanted)
            slot = f"{self.session.id}/simulate"
            self._ticket = self._compute().ask(slot, "simulate", self.original, fields, self.session.answered)
            self.busy = True

    def poll(self) -> None:
        """Takes an answer if there is one; cheap when there is none."""
        ticket = self._ticket
        if ticket is not None and ticket.done:
            self._ticket, self.busy = None, False
            if not ticket.stale and self._asked_for is not None and self._asked_for[0] is self.original:
                self._take(ticket, *self._asked_for)
        trace = self._trace_ticket
        if trace is not None and trace.done:
            self._trace_ticket = None
            if trace.result is not None:
                self.perfetto = trace.result["text"]
                self.param.trigger("perfetto_ready")
                self.perfetto = ""
            elif trace.error:
                self.session.notify("error", trace.error)

    def _take(self, ticket: Ticket, original: Plan, wanted: Derivation) -> None:
        if ticket.result is None:
            self._set_errors(placed_error(ticket.error, self._last_field))
            return
        with self.session.reporting():
            made = derived_from_data(ticket.result["made"], original)
            replay, room = Replay.from_data(ticket.result["replay"]), list(ticket.result["room"])
            if wanted.is_empty:
                # The plan itself, with the compute worker's estimate where the file had none.
                same = original.estimate is not None
                made = original if same else made.replace(provenance=original.provenance)
                self._found = (made, replay, room)
            self._show(made, replay, room)
            if wanted.is_empty and self._due:
                self._restore_due()

    def _show(self, made: Plan, replay: Replay, room: list[int]) -> None:
        self.replay, self.room, self.shown = replay, room, made
        with self._quietly():
            self.in_flight = depths_text(made)
        self._set_errors({})
        self.param.trigger("shown_changed")

    def _set_errors(self, errors: dict[str, str]) -> None:
        if errors != self.errors:
            self.errors = errors
            self.param.trigger("errors_changed")

    # -- what becomes of it -----------------------------------------------------------------------

    @property
    def base(self) -> Replay | None:
        """A step of the plan as it was found."""
        return self._found[1] if self._found is not None else None

    @property
    def can_save(self) -> bool:
        """Whether what is shown differs from the current plan."""
        in_hand = self.session.plan
        return (
            self.shown is not None and self.shown is not in_hand and (in_hand is not self.original or self.is_derived)
        )

    @property
    def swarm(self) -> ElasticPlan | None:
        """The elastic plan whose steady-state step is simulated, if one is."""
        return self.session.elastic if self.original is self.session.plan else None

    @property
    def is_derived(self) -> bool:
        """Whether what is shown differs from the plan that was found."""
        return bool(self.changes)

    @property
    def changes(self) -> list[str]:
        """What was changed, in words."""
        if self.shown is None or self.original is None or self.shown is self.original:
            return []
        return changes_text(self.original, self.shown)

    def save(self) -> None:
        """Makes the derived plan the current plan: Run and Export then work with it."""
        if self.shown is not None and self.can_save:
            self.session.plan = self.shown
            self.edited = ""
            words = f"Saved as derived: {'; '.join(self.changes)}." if self.is_derived else "The plan as it was found."
            self.session.notify("success", f"{words} Run and Export use it now.")
            self.param.trigger("shown_changed")

    def ask_perfetto(self) -> None:
        """Has the shown step written as a trace file; `perfetto_ready` says when it is there."""
        if self.shown is not None and self._trace_ticket is None:
            slot = f"{self.session.id}/perfetto"
            self._trace_ticket = self._compute().ask(slot, "perfetto", self.shown)


def depths_text(plan: Plan) -> str:
    """'8 7 6', or one number where all stages have the same."""
    depths = [stage.in_flight for stage in plan.stages]
    return str(depths[0]) if len(set(depths)) == 1 else " ".join(map(str, depths))


def parse_depths(text: str) -> tuple[int, ...]:
    """Whole numbers apart by blanks or commas. Raises ValueError saying what is wrong."""
    words = text[:MOST_DEPTH_TEXT].replace(",", " ").split()
    if not words:
        raise ValueError("must be one number, or one for each stage, such as 8 7 6; got nothing")
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= len(word) <= 7 and int(word) >= 1):
            raise ValueError(f"must be whole numbers of at least 1, got {word!r:.30}")
    return tuple(map(int, words))


def batch_sizes(global_batch: int, routes: int, present: int) -> list[int]:
    """Micro-batch sizes that divide the global batch and leave every route one; those next to the present one."""
    most = global_batch // max(routes, 1)
    small = [n for n in range(1, int(global_batch**0.5) + 1) if global_batch % n == 0]
    sizes = sorted({n for n in (*small, *(global_batch // n for n in small)) if n <= most} | {present})
    at = max(0, sizes.index(present) - MOST_SIZES // 2)
    return sizes[at : at + MOST_SIZES]


def placed_error(text: str, last_field: str) -> dict[str, str]:
    """An error beside the field that it names, or beside the one that was changed last."""
    words = text.removeprefix("simulate: ")
    named = next((name for name in FIELDS if words.startswith((f"{name}:", f"{name}[", f"{name}."))), None)
    if named is not None:
        words = words.split(": ", 1)[-1]
    return {named or last_field or "schedule": words}
