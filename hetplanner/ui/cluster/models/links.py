"""The links of the Cluster page: what is chosen, what is typed, and the edits that come of it.

Every edit goes through the page's one editor, so that Undo takes it back. What cannot be read is explained in
`errors`, by the name of the field, and changes nothing.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import param

from hetplanner.cluster import link_edits
from hetplanner.cluster.distance import DEFAULT_FORMULA, DistanceFormula, fitted_formula
from hetplanner.cluster.formats.matrices import Quantity
from hetplanner.cluster.link_edits import LinkEnds
from hetplanner.cluster.model import Cluster, LinkValue
from hetplanner.errors import HetplannerError
from hetplanner.schema import checked
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.shell.models.session import Session
from hetplanner.units import format_bytes_per_s, format_seconds, short_rate, short_seconds

PER = {"Two sites": "site", "Two devices": "device", "One host": "host"}
SOURCES = ("specified", "assumed")
SCOPES = {"pairs without a link": "missing", "those and assumed ones": "assumed", "all pairs of sites": "all"}
FIELDS = ("ends", "bandwidth", "latency", "formula", "link")
UNITS: dict[Quantity, str] = {"bandwidth": "Gbit/s", "latency": "ms"}
"""What a number without a unit is taken to be in."""
MAX_TYPED = 60
MAX_NAME = 120
MAX_SINGLES = 30
"""Most links of hosts and single devices in the list."""


class LinksModel(param.Parameterized):
    """What is chosen and typed about links. Watch `selected` for the pair, `errors` for what was refused."""

    per: Any = param.Selector(default="site", objects=list(PER.values()))
    start = param.String(default="")
    end = param.String(default="")
    bandwidth = param.String(default="")
    latency = param.String(default="")
    source: Any = param.Selector(default="specified", objects=list(SOURCES))
    symmetric = param.Boolean(default=True, doc="An edit holds in both directions.")
    scope: Any = param.Selector(default="missing", objects=list(SCOPES.values()))
    formula: Any = param.Parameter(default=DEFAULT_FORMULA, doc="The constants that filling uses.")
    selected: Any = param.Parameter(default=None, doc="LinkEnds, or None.")
    errors: Any = param.Parameter(default={}, doc="What was refused, by field.")

    def __init__(self, session: Session, editor: Editor, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.editor = editor
        self._filling = False
        editor.param.watch(self._cluster_changed, "cluster")
        self.param.watch(self._ends_typed, ["per", "start", "end"])

    @property
    def cluster(self) -> Cluster | None:
        """The current cluster."""
        return self.editor.cluster

    # -- choosing ---------------------------------------------------------------------------------

    def choose(self, ends: LinkEnds | None) -> None:
        """The link that the form is about; None for none."""
        self._filling = True
        if ends is not None:
            self.param.update(per=ends.per, start=ends.start, end=ends.end)
        self._filling = False
        self._show(ends)

    def choose_devices(self, start: str, end: str) -> None:
        """A click on a pair of devices: their link, their host's or their sites', as the form is set."""
        cluster = self.cluster
        if cluster is None or start == end or not {start, end} <= set(cluster.device_ids):
            return
        if self.per == "device":
            self.choose(LinkEnds("device", start, end))
            return
        hosts = cluster.host_of(start).id, cluster.host_of(end).id
        in_host = hosts[0] == hosts[1] and (self.per == "host" or self._has_host_link(hosts[0]))
        sites = cluster.site_of(start).name, cluster.site_of(end).name
        self.choose(LinkEnds("host", *hosts) if in_host else LinkEnds("site", *sites))

    def _has_host_link(self, host: str) -> bool:
        return self.cluster is not None and any(link.host == host for link in self.cluster.host_links)

    def _ends_typed(self, *_: Any) -> None:
        """From and To as a person names them; a half-typed or unknown name is explained and chooses nothing."""
        if self._filling:
            return
        if self.per == "host" and self.start:
            self._filling, self.end = True, self.start
            self._filling = False
        self._show(LinkEnds(self.per, self.start, self.end) if self.start and self.end else None)

    def _show(self, ends: LinkEnds | None) -> None:
        """Fills the fields with what holds between these ends."""
        link, errors = None, {}
        if ends is not None and self.cluster is not None:
            try:
                link = link_edits.link_in_force(self.cluster, ends)
            except HetplannerError as error:
                ends, errors = None, {"ends": _said(error)}
        self.param.update(
            bandwidth=format_bytes_per_s(link.bandwidth) if link else "",
            latency=format_seconds(link.latency) if link else "",
            selected=ends,
            errors=errors,
        )

    def _cluster_changed(self, *_: Any) -> None:
        """After an edit or Undo the fields show what holds now; what is gone is no longer chosen."""
        known = self.names(self.per)
        ends = self.selected
        self._show(ends if ends is not None and {ends.start, ends.end} <= set(known) else None)

    def names(self, per: str) -> list[str]:
        """What From and To may name."""
        cluster = self.cluster
        if cluster is None:
            return []
        if per == "site":
            return [site.name for site in cluster.sites]
        return [host.id for host in cluster.hosts] if per == "host" else list(cluster.device_ids)

    # -- the form ---------------------------------------------------------------------------------

    def submit(self) -> bool:
        """The typed numbers for the chosen link (blank: as it is); False if one was refused."""
        ends = self.selected
        if ends is None:
            return self._refuse(
                "ends", self.errors.get("ends") or "choose a link first: click a cell, or name two ends"
            )
        held = link_edits.link_in_force(self.cluster, ends) if self.cluster is not None else None
        numbers: dict[str, float] = {}
        for quantity in ("bandwidth", "latency"):
            text = getattr(self, quantity)
            try:
                blank = held is not None and not text.strip()
                numbers[quantity] = getattr(held, quantity) if blank else typed_number(quantity, text)
            except HetplannerError as error:
                return self._refuse(quantity, str(error))
        words = f"link {ends.text}: {short_rate(numbers['bandwidth'])}, {short_seconds(numbers['latency'])}"
        source, symmetric = self.source, self.symmetric

        def change(cluster: Cluster) -> Cluster:
            return link_edits.set_link(
                cluster,
                ends,
                latency_s=numbers["latency"],
                bandwidth_bytes_per_s=numbers["bandwidth"],
                source=source,
                symmetric=symmetric,
            )

        return self._edit("link", change, words)

    def enter(self, start: str, end: str, bandwidth: str, latency: str) -> bool:
        """A form handed in whole. Other ends than the chosen are chosen first, and keep what was typed for them."""
        shown = {"bandwidth": self.bandwidth, "latency": self.latency}
        typed = {"bandwidth": bandwidth[:MAX_TYPED], "latency": latency[:MAX_TYPED]}
        other = (start, end) != (self.start, self.end)
        if other:
            self.param.update(start=start[:MAX_NAME], end=end[:MAX_NAME])
            typed = {name: text for name, text in typed.items() if text != shown[name]}
            if self.errors or not typed:
                return not self.errors
        self.param.update(**typed)
        return self.submit()

    def remove(self) -> bool:
        """Without the chosen link's own entry."""
        ends, symmetric = self.selected, self.symmetric
        if ends is None:
            return self._refuse("ends", "choose a link first: click a cell, or name two ends")
        words = f"removed the link {ends.text}"
        return self._edit("link", lambda cluster: link_edits.remove_link(cluster, ends, symmetric=symmetric), words)

    def remove_overrides(self) -> bool:
        """Without the links of single pairs of devices between the chosen sites."""
        ends = self.selected
        if ends is None or ends.per != "site":
            return self._refuse("ends", "choose two sites first")
        words = f"removed the links of single devices {ends.text}"
        return self._edit("link", lambda cluster: link_edits.remove_overrides(cluster, ends.start, ends.end), words)

    # -- all links at once ------------------------------------------------------------------------

    def fill(self) -> bool:
        """Links between sites from the distance, by `formula` and `scope`."""
        formula, scope = self.formula, self.scope
        words = "filled links from distance"
        return self._edit(
            "formula",
            lambda cluster: link_edits.fill_from_distance(cluster, formula, scope=scope),
            words,
            "No link to fill",
        )

    def fit_formula(self) -> bool:
        """Takes the constants from the measured links of the current cluster."""
        fitted = fitted_formula(self.cluster) if self.cluster is not None else None
        if fitted is None:
            return self._refuse("formula", "needs at least 3 measured links between sites at different places")
        self.param.update(formula=fitted, errors={})
        return True

    def type_constants(self, texts: Mapping[str, str]) -> bool:
        """Constants of the formula as a person types them (ms, ms per 1000 km, Mbit, Gbit/s)."""
        fields = {}
        for name, text in texts.items():
            try:
                number = float(text.replace(",", "."))
            except ValueError:
                number = math.nan
            least = 1e-6 if name in ("in_flight_bytes", "most_bytes_per_s") else 0
            if not least <= number <= 1e6:
                return self._refuse("formula", f"a constant must be a number from {least:g} to 10^6, got {text!r:.40}")
            fields[name] = number * _CONSTANT_UNITS[name]
        self.param.update(formula=self.formula._replace(**fields), errors={})
        return True

    def make_symmetric(self) -> bool:
        """Both directions of every link alike."""
        words = "made all links symmetric"
        return self._edit("link", link_edits.make_symmetric, words, "All links are symmetric already")

    # -- shared -----------------------------------------------------------------------------------

    def _edit(self, field: str, change: Callable[[Cluster], Cluster], words: str, otherwise: str = "") -> bool:
        """Applies a change to the newest state; what it raises is an error of `field`."""
        before = self.cluster
        if before is None:
            return self._refuse(field, "there is no cluster yet: choose a sample, import one, or draw sites first")
        try:
            self.editor.edit(lambda cluster: None if cluster is None else change(cluster), words)
        except HetplannerError as error:
            return self._refuse(field, _said(error))
        self.errors = {}
        if self.cluster is before and otherwise:
            self.session.notify("info", f"{otherwise}.")
        return True

    def _refuse(self, field: str, text: str) -> bool:
        self.errors = {field: text}
        return False

    # -- words ------------------------------------------------------------------------------------

    @property
    def about(self) -> str:
        """How the chosen link is known, what it replaced, and what stands above it."""
        cluster, ends = self.cluster, self.selected
        if cluster is None or ends is None:
            return "Click a cell of the heat map or of the tables, or name two ends."
        link = link_edits.link_in_force(cluster, ends)
        if link is None:
            return "No link: plans let these sites talk over others alone. Give both numbers to make one."
        parts = [f"{link_edits.known_text(link)}."]
        if ends.per == "device" and link_edits.own_link(cluster, ends) is None:
            parts.append("It is the link of their sites or host; a change is for these two devices alone.")
        if link.replaces:
            parts.append(f"Before it was edited: {link.replaces}.")
        singles = self.num_overrides
        if singles:
            parts.append(f"{singles} links of single devices between them stand above it.")
        return " ".join(parts)

    @property
    def num_overrides(self) -> int:
        """Links of single devices between the chosen sites."""
        cluster, ends = self.cluster, self.selected
        if cluster is None or ends is None or ends.per != "site":
            return 0
        return len(link_edits.overrides_between(cluster, ends.start, ends.end))

    def singles(self) -> list[tuple[LinkEnds, str]]:
        """Links of hosts and single pairs of devices, each in words: of the chosen sites if they have some, else all.

        At most `MAX_SINGLES`; `num_singles` says how many there are.
        """
        cluster, ends = self.cluster, self.selected
        if cluster is None:
            return []
        if self.num_overrides:
            chosen: Sequence[LinkValue] = link_edits.overrides_between(cluster, ends.start, ends.end)[:MAX_SINGLES]
        else:
            chosen = (*cluster.host_links[:MAX_SINGLES], *cluster.device_links[:MAX_SINGLES])[:MAX_SINGLES]
        return [(link_edits.ends_of(link), _in_words(link)) for link in chosen]

    @property
    def num_singles(self) -> int:
        """How many links `singles` is about."""
        cluster = self.cluster
        if cluster is None:
            return 0
        return self.num_overrides or len(cluster.host_links) + len(cluster.device_links)

    @property
    def is_own(self) -> bool:
        """Whether the chosen link has an entry of its own, which could be removed."""
        cluster, ends = self.cluster, self.selected
        return cluster is not None and ends is not None and link_edits.own_link(cluster, ends) is not None

    @property
    def counts(self) -> dict[str, int]:
        """How many links are measured, specified and assumed."""
        links: Sequence[LinkValue] = self.cluster.links if self.cluster is not None else ()
        counted = Counter(link.source for link in links)
        return {source: counted[source] for source in ("measured", "specified", "assumed")}


def _in_words(link: LinkValue) -> str:
    return f"{short_rate(link.bandwidth)}, {short_seconds(link.latency)}, {link_edits.known_text(link)}"


def typed_number(quantity: Quantity, text: str) -> float:
    """What a person typed, in SI units: '1.2 Gbit/s', or a bare number in Gbit/s (bandwidth) or ms (latency).

    Raises:
        InvalidInput: without the quantity's name, which stands beside the field.
    """
    text = text.strip()[:MAX_TYPED]
    bare = text.replace(",", ".", 1) if text.count(",") == 1 and "." not in text else text
    try:
        float(bare)
        text = f"{bare} {UNITS[quantity]}"
    except ValueError:
        text = bare
    fields = {"bandwidth": "1 B/s", "latency": "0 s"} | {quantity: text}
    try:
        return float(getattr(checked(LinkValue, fields, "", from_file=True), quantity))
    except HetplannerError as error:
        # All the units there are would fill the form.
        said = re.sub(r"with one of the units .*? \(as in (.*?)\)", r"with a unit, as in \1", str(error))
        raise type(error)(said.removeprefix(f"{quantity}: ")) from None


def _said(error: HetplannerError) -> str:
    return str(error)[:400]


def formula_fields(formula: DistanceFormula) -> dict[str, float]:
    """Constants in the units in which `LinksModel.type_constants` takes them."""
    return {name: float(f"{getattr(formula, name) / unit:.6g}") for name, unit in _CONSTANT_UNITS.items()}


_CONSTANT_UNITS = {"ends_s": 1e-3, "s_per_km": 1e-6, "in_flight_bytes": 1e6 / 8, "most_bytes_per_s": 1e9 / 8}
