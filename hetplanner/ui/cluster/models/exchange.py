"""Clusters and tables in and out of the Cluster page: files, pasted text, downloads."""

import io
import zipfile
from collections.abc import Callable
from typing import Any, Literal

import param

from hetplanner.cluster.formats.cluster_files import cluster_to_json
from hetplanner.cluster.formats.graph_files import graphml_text, node_link_json
from hetplanner.cluster.formats.table_export import TableForm, tables_of
from hetplanner.cluster.formats.tool_output import with_tool_output
from hetplanner.cluster.formats.uploads import cluster_from_uploads, files_from_text
from hetplanner.errors import HetplannerError
from hetplanner.reading import noting
from hetplanner.schema import one_line
from hetplanner.ui.cluster.models.cluster import ClusterModel, count_text

KINDS = {"Bandwidth (Gbit/s)": "bandwidth", "Latency (ms)": "latency"}
SOURCES = ("measured", "specified", "assumed")
Form = TableForm | Literal["graphml", "node-link"] | None
FORMS: dict[str, Form] = {
    "Cluster file (JSON)": None,
    "Sites × sites (CSV)": "site-csv",
    "Sites × sites (JSON)": "site-json",
    "Devices × devices (CSV)": "csv",
    "Devices × devices (NPY)": "npy",
    "Graph (GraphML)": "graphml",
    "Graph (node-link JSON)": "node-link",
}
_FILE_NAMES = {
    None: "cluster.json", "site-json": "site_tables.json", "graphml": "cluster.graphml", "node-link": "graph.json"
}  # fmt: skip
MAX_PASTED = 2_000_000
"""Characters. Larger tables come as files."""
MAX_CSV_DEVICES = 96
"""Beyond, a CSV of all pairs takes the page's time: NPY says the same."""


class ExchangeModel(param.Parameterized):
    """Imports become the current cluster, or change what they name in it; `errors` says what was refused, and where.

    Attributes:
        kind: what a pasted table of numbers holds.
        source: how the numbers of tables are known.
        errors: by `file`, `text` or `download`.
    """

    kind: Any = param.Selector(default="bandwidth", objects=list(KINDS.values()))
    first = param.String(default="", doc="Where pasted GPUs stand; where iperf3's client ran.")
    second = param.String(default="", doc="The host of pasted GPUs; where iperf3's server ran.")
    source: Any = param.Selector(default="measured", objects=list(SOURCES))
    round_trip = param.Boolean(default=False, doc="Latencies of imported tables are round trips; they are halved.")
    errors: Any = param.Parameter(default={})
    notes: Any = param.Parameter(default={}, doc="What was read but is hardly meant, by `file` or `text`.")

    def __init__(self, model: ClusterModel, **params: Any) -> None:
        super().__init__(**params)
        self._model = model

    def take_files(self, files: dict[str, bytes]) -> bool:
        """Uploaded files by name: one JSON, or tables as CSV or NPY."""
        return self._take("file", lambda: files)

    def refuse_files(self, text: str) -> None:
        """Says beside the button why files did not come; what was there stays."""
        self.errors, self.notes = {"file": text}, {}

    def take_text(self, text: str) -> bool:
        """Pasted text: a cluster file, a graph, a table, GPUs by nvidia-smi, or a link by `iperf3 -J`."""
        if len(text) > MAX_PASTED:
            self.errors = {"text": f"must be at most {MAX_PASTED:,} characters, got {len(text):,}; give it as a file"}
            return False
        return self._take("text", lambda: files_from_text(text, self.kind), text)

    def _take(self, place: str, files: Callable[[], dict[str, bytes]], text: str = "") -> bool:
        before, noted = self._model.cluster, list[str]()
        self.notes = {}
        try:
            with noting(noted.append):
                tool = with_tool_output(before, text, self.first, self.second)
                cluster = tool or cluster_from_uploads(
                    files(), like=before, round_trip=self.round_trip, source=self.source
                )
            # What is about the same devices, or adds some, leaves those excluded that are.
            same = tool is not None or (before is not None and before.device_ids == cluster.device_ids)
            self._model.editor.apply(cluster, f"imported {cluster.name}", excluded=None if same else ())
        except HetplannerError as error:
            self.errors = {place: str(error)}
            return False
        self.errors, self.notes = {}, {place: "\n".join(noted)}
        self._model.session.notify("success", f"Imported {cluster.name}: {count_text(cluster)}.")
        return True

    def forms(self) -> list[str]:
        """What the current cluster can be downloaded as."""
        cluster = self._model.cluster
        if cluster is None:
            return list(FORMS)[:1]
        small = len(cluster.devices) <= MAX_CSV_DEVICES
        of_pairs = ("csv", "graphml", "node-link")  # written as text, pair by pair
        fitting = {name: form for name, form in FORMS.items() if small or form not in of_pairs}
        if cluster.has_gaps:  # which tables cannot say
            return [name for name, form in fitting.items() if form in (None, "graphml", "node-link")]
        return list(fitting)

    def file_name(self, form: str) -> str:
        """What a download is called."""
        return _FILE_NAMES.get(FORMS[form], f"{FORMS[form]}_tables.zip")

    def download(self, form: str) -> io.BytesIO:
        """The current cluster as a file; tables of several files in a ZIP archive."""
        cluster, kind = self._model.cluster, FORMS[form]
        if cluster is None:
            return io.BytesIO()
        if kind is None:
            return io.BytesIO(cluster_to_json(cluster).encode())
        if kind == "graphml" or kind == "node-link":
            return io.BytesIO((graphml_text if kind == "graphml" else node_link_json)(cluster).encode())
        try:
            files = tables_of(cluster, kind)
        except HetplannerError as error:
            self.errors = {"download": one_line(str(error))}
            return io.BytesIO()
        if len(files) == 1:
            return io.BytesIO(next(iter(files.values())))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        out.seek(0)
        return out
