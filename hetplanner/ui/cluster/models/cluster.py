"""The Cluster page: the current cluster, from a sample, from uploaded files, or drawn."""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import param

from hetplanner.cluster.catalog import resolve_device
from hetplanner.cluster.formats.cluster_files import load_cluster
from hetplanner.cluster.model import Cluster, Device
from hetplanner.errors import HetplannerError
from hetplanner.ui.cluster.models.drafts import DraftStore
from hetplanner.ui.cluster.models.editor import Editor
from hetplanner.ui.shell.models.session import Session
from hetplanner.units import short_bytes, short_rate, short_seconds

DEFAULT_SAMPLE = "dtfm_5_worldwide"
CHANGED = "(drawn or imported)"
DEVICE_COLUMNS = {
    "used": bool,
    "id": object,
    "kind": object,
    "host": object,
    "site": object,
    "fp16 TFLOP/s": float,
    "memory": object,
    "efficiency": object,
    "bandwidth out": object,
    "one-way latency": object,
}


class ClusterModel(param.Parameterized):
    """The current cluster. What cannot be read leaves it as it was.

    `cluster` follows the editor's, through which every change goes.
    """

    sample: Any = param.Selector(default=None, objects=[None], allow_None=True)
    cluster = param.ClassSelector(class_=Cluster, default=None)

    def __init__(self, session: Session, samples: Path, drafts: DraftStore, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.editor = Editor(drafts)
        self.editor.param.watch(self._edited, "cluster")
        self._naming = False
        # Names come from this listing alone: the browser chooses among them and never sends a path.
        self._samples = {path.stem: path for path in sorted(samples.glob("*.json"))}
        self.param.sample.objects = [*self._samples, CHANGED]
        self.param.watch(self._sample_chosen, "sample")

    def choose_default(self) -> None:
        """The measured world-wide cluster, or the first sample there is."""
        if self._samples:
            name = DEFAULT_SAMPLE if DEFAULT_SAMPLE in self._samples else next(iter(self._samples))
            with self.session.reporting():
                self.editor.begin(_sample(self._samples[name]))

    def _sample_chosen(self, event: param.parameterized.Event) -> None:
        path = self._samples.get(event.new)
        if path is not None and not self._naming:
            with self.session.reporting():
                self.editor.apply(_sample(path), f"opened {event.new}", excluded=())

    def _edited(self, event: param.parameterized.Event) -> None:
        self.cluster = event.new
        self._naming = True
        self.sample = self._sample_of(event.new)
        self._naming = False

    def _sample_of(self, cluster: Cluster | None) -> str:
        same = self._samples.get(cluster.name) if cluster is not None else None
        return cluster.name if cluster is not None and same is not None and _is_same(same, cluster) else CHANGED

    def adopt(self, cluster: Cluster, words: str, excluded: tuple[str, ...] = ()) -> None:
        """Takes a cluster that came with a search, or from a file, in place of the current one."""
        with self.session.reporting():
            self.editor.apply(cluster, words, excluded=excluded)

    def open_draft(self, draft_id: str) -> None:
        """Goes on with a draft that the page's address names."""
        if not self.editor.open(draft_id):
            self.session.notify("warning", "The server no longer has the cluster that was edited here.")

    def sync(self) -> None:
        """Takes and reports what another page did to the same draft."""
        said = self.editor.sync()
        if said:
            self.session.notify("info", f"Another page changed this cluster: {said}.")

    @property
    def summary(self) -> str:
        """One paragraph: what it is, how much, how its links are known."""
        cluster = self.cluster
        if cluster is None:
            return ""
        sources = Counter(link.source for link in cluster.links)
        known = ", ".join(f"{n} {source}" for source, n in sources.most_common())
        left_out = f" {_number(self.editor.excluded, 'device')} excluded." if self.editor.excluded else ""
        parts = [f"{cluster.name}: {count_text(cluster)}; links: {known}.{left_out}", cluster.description]
        return " ".join(part for part in parts if part)[:600]

    def device_rows(self) -> pd.DataFrame:
        """The device table. All clusters have the same columns: Tabulator fails on new ones while it is being built."""
        cluster = self.cluster
        if cluster is None:
            return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in DEVICE_COLUMNS.items()})
        rows = pd.DataFrame([_row(cluster, device) for device in cluster.devices]).assign(
            used=self.used, **_link_columns(cluster)
        )
        return rows.astype(DEVICE_COLUMNS)[[*DEVICE_COLUMNS]]

    @property
    def used(self) -> list[bool]:
        """For every device whether plans may use it."""
        excluded = set(self.editor.excluded)
        return [d not in excluded for d in self.editor.cluster.device_ids] if self.editor.cluster is not None else []


def count_text(cluster: Cluster) -> str:
    """'64 devices on 64 hosts at 8 sites (64 × V100)'."""
    kinds = Counter(device.kind for device in cluster.devices).most_common()
    named = ", ".join(f"{n} × {kind}" for kind, n in kinds[:4]) + (", …" if len(kinds) > 4 else "")
    return (
        f"{_number(cluster.devices, 'device')} on {_number(cluster.hosts, 'host')}"
        f" at {_number(cluster.sites, 'site')} ({named})"
    )


def _number(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _row(cluster: Cluster, device: Device) -> dict[str, Any]:
    host = cluster.host_of(device.id)
    row: dict[str, Any] = {"id": device.id, "kind": device.kind, "host": device.host, "site": host.site}
    try:
        spec = resolve_device(device)
        row |= {
            "fp16 TFLOP/s": round(spec.flops_per_s("float16") / 1e12, 1),
            "memory": short_bytes(spec.memory_bytes),
            "efficiency": f"{100 * spec.efficiency:.0f} %",
        }
    except HetplannerError:
        row |= {"fp16 TFLOP/s": None, "memory": "unknown", "efficiency": "unknown"}
    return row


def _link_columns(cluster: Cluster) -> dict[str, list[str]]:
    """Least and greatest bandwidth and latency from every device to the others."""
    columns = {}
    matrices = (
        ("bandwidth out", cluster.bandwidth_bytes_per_s_DD, short_rate),
        ("one-way latency", cluster.latency_s_DD, short_seconds),
    )
    for name, matrix_DD, text in matrices:
        others_DD = np.where(cluster.joined_DD, matrix_DD, np.nan)
        np.fill_diagonal(others_DD, np.nan)
        columns[name] = [_range_text(others_D[~np.isnan(others_D)], text) for others_D in others_DD]
    return columns


def _range_text(values: np.ndarray, text: Callable[[float], str]) -> str:
    """'1 – 2 Gbit/s', of one value '1 Gbit/s', and of none a dash."""
    if not len(values):
        return "–"
    least, most = float(values.min()), float(values.max())
    return text(least) if least == most else f"{text(least)} – {text(most)}"


def _is_same(path: Path, cluster: Cluster) -> bool:
    try:
        return _sample(path) == cluster
    except HetplannerError:
        return False


@lru_cache(maxsize=16)
def _sample(path: Path) -> Cluster:
    """A sample; they do not change while the server runs."""
    return load_cluster(path)
