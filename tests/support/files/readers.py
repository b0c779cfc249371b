"""Every reader of files: how to make files that it takes, and how it reads them. The fuzz goes over this list.

A reader is given a folder. Files have the endings by which `damage` tells their kind of data.
"""

import dataclasses
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save_file

from hetplanner.calibration.model import load_calibration
from hetplanner.calibration.table_fit import read_table
from hetplanner.cluster import measured
from hetplanner.cluster.formats.cluster_files import cluster_to_data, load_cluster, save_cluster
from hetplanner.cluster.formats.graph_files import graphml_text, node_link_json
from hetplanner.cluster.formats.table_export import export_tables
from hetplanner.cluster.formats.tables import cluster_from_folder
from hetplanner.cluster.formats.tool_output import with_tool_output
from hetplanner.cluster.formats.uploads import (
    cluster_from_any_json,
    cluster_from_file,
    cluster_from_uploads,
    files_from_text,
)
from hetplanner.data.registry import check_data, open_data
from hetplanner.data.tokenizing.chat_template import load_template
from hetplanner.data.tokenizing.records import Columns, read_rows
from hetplanner.data.tokenizing.tokenizer import ids_of, load_tokenizer, writes_special_tokens
from hetplanner.elastic.coordinator.decisions import Booted, CheckpointSaved, Committed, encode_decision
from hetplanner.elastic.forecast.preemptions import load_preemptions
from hetplanner.elastic.protocol.identity import Stamp, Version
from hetplanner.hosts.changes.next_plan import NextPlan, load_next, save_next
from hetplanner.hosts.probe.record import (
    ProbedDevice,
    ProbedLink,
    ProbedTogether,
    Record,
    check_record,
    load_record,
    save_record,
)
from hetplanner.hosts.probe.result import findings, probed_cluster
from hetplanner.launchers.hosts_file import read_hosts
from hetplanner.launchers.launch_file import Launch, load_launch, save_launch
from hetplanner.plan.durations import Durations
from hetplanner.plan.files.checkpoints import (
    MANIFEST,
    Manifest,
    RankFile,
    check_rank_file,
    file_digest,
    load_manifest,
    rank_file,
)
from hetplanner.plan.files.plan_files import load_elastic_plan, load_plan, save_plan
from hetplanner.plan.files.stage_checkpoints import check_checkpoint, checkpoint_path
from hetplanner.plan.files.trace_files import load_trace
from hetplanner.plan.files.train_files import load_config, resume_chain, save_config
from hetplanner.plan.train import TrainConfig
from hetplanner.planners.search.moments import plan_moment
from hetplanner.plots.data.runs.host_loads import busy_lines, traffic_lines
from hetplanner.plots.report_page import report_page
from hetplanner.plots.swarm_report_page import swarm_report_page
from hetplanner.profiles.files import load_profile, save_profile
from hetplanner.profiles.imports.registry import import_profile
from hetplanner.runs.agent.allowed_paths import read_allowed_paths
from hetplanner.runs.agent.audit import audit_records
from hetplanner.runs.annotations import Annotations, read_annotations, write_annotations
from hetplanner.runs.plan_store import PlanStore
from hetplanner.runs.reports.diagnosis import diagnose
from hetplanner.runs.reports.reordering import reorder_run
from hetplanner.runs.reports.report import report_run
from hetplanner.runs.reports.swarm_report import report_swarm
from hetplanner.runs.run import Run, agent_lives
from hetplanner.runs.sinks.record import SinkRecord, read_record, write_record
from hetplanner.runs.status import RunStatus, read_status, write_status
from hetplanner.simulator.simulation import simulate
from hetplanner.storage.address import Storage
from hetplanner.storage.copying import copied_manifest
from hetplanner.swarm.event_log import parse_events
from hetplanner.swarm.initial_state import read_ledger
from hetplanner.swarm.launch.requests import PeerOrder, ask, orders_so_far
from hetplanner.swarm.launch.saved_on_hosts import SAVED_FILE, saved_on_hosts, saved_text
from hetplanner.swarm.spec import read_spec, spec_of
from hetplanner.weights.adapters import ADAPTER_CONFIG, ADAPTER_FILE, adapter_config, adapter_parts, check_adapter
from hetplanner.weights.check import check_weights
from hetplanner.weights.names import parts_of
from hetplanner.workload.capturing.capture import mask_of_tokenizer
from hetplanner.workload.capturing.kept import load_kept, packed
from hetplanner.workload.files import load_workload_file, save_workload
from hetplanner.workload.fine_tuning import Adapters, FineTuning
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.load import load_workload
from hetplanner.workload.workload import Workload
from tests.support.models.packed_data import documents_folder, some_documents
from tests.support.plans.factories import chain_plan, image_workload, small_cluster, swarm_plan, tiny_workload
from tests.support.plans.profiles import made_profile

Files = dict[str, bytes]


@dataclasses.dataclass(frozen=True)
class Reader:
    """One way into the product.

    Attributes:
        make: writes files into a folder that the reader takes.
        read: reads them.
        share: of the cases that others get; less where one takes a second.
        covers: functions under `hetplanner.reading.reader` that are called, by 'module.function' without the package.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    covers: tuple[str, ...] = ()
    share: float = 1.0

    @cache  # noqa: B019 (readers live as long as the process)
    def files(self) -> Files:
        """The valid files, by their path in the folder."""
        with TemporaryDirectory() as folder:
            self.make(Path(folder))
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# -- clusters -------------------------------------------------------------------------------------


def _cluster():
    cluster = small_cluster(3, nic="1 Gbit/s")
    device = cluster.devices[0].replace(peak={"float32": 1e12}, memory=2e9, efficiency=0.5, price_usd_per_hour=0.1)
    return cluster.replace(devices=(device, *cluster.devices[1:]))


SITE_TABLES = {
    "format": "hetplanner/site-tables@1",
    "name": "two",
    "sites": [{"name": "A", "latitude": 1.5, "longitude": 2}, {"name": "B", "latitude": -3, "longitude": 4}],
    "devices": [{"id": "a", "count": 2, "kind": "T4", "site": "A"}, {"id": "b", "kind": "T4", "site": "B"}],
    "bandwidth_gbit_s": [[5, 1], [2, 3]],
    "latency_ms": [[1, 20], [30, 1]],
    "round_trip": True,
    "source": "measured",
    "overrides": [{"per": "device", "from": "a-0", "to": "b", "bandwidth": "7 Gbit/s", "latency": "2 ms"}],
}
OVERRIDES = "per,from,to,bandwidth,latency\nsite,site-0,site-1,7 Gbit/s,2 ms\nhost,host-0,host-0,9 Gbit/s,1 ms\n"


def _make_site_tables(folder: Path) -> None:
    export_tables(_cluster(), folder, "site-csv")
    (folder / "overrides.csv").write_text(OVERRIDES)


def _read_uploads(folder: Path) -> object:
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    for like in (None, _cluster()):
        cluster_from_uploads(files, like=like)
    return cluster_from_uploads({name: text for name, text in files.items() if "bandwidth" in name}, like=_cluster())


def _read_pasted(folder: Path) -> object:
    found = None
    for path in sorted(folder.iterdir()):
        found = cluster_from_uploads(files_from_text(path.read_text("utf-8", "replace")), like=_cluster())
    return found


def _make_pasted(folder: Path) -> None:
    export_tables(_cluster(), folder, "csv")
    (folder / "latency_ms.csv").unlink()
    (folder / "devices.csv").unlink()


def _named(path: Path) -> tuple[bytes, str]:
    return path.read_bytes(), path.name


SITE_GRAPH = {
    "graph": {"name": "drawn"},
    "nodes": [
        {"id": "Frankfurt", "kind": "A100-80", "count": 4, "per_host": 2},
        {"id": "far", "latitude": 3.5, "longitude": 4, "provider": "aws"},
        {"id": 7, "kind": "T4", "site": "far", "memory": "15 GiB", "nic_out": "1 Gbit/s"},
    ],
    "links": [{"source": "Frankfurt", "target": "far", "bandwidth": "2 Gbit/s", "latency_ms": 70, "known": "measured"}],
}


def _make_site_graph(folder: Path) -> None:
    (folder / "graph.json").write_text(json.dumps(SITE_GRAPH))


def _make_gpus(folder: Path) -> None:
    (folder / "tool.txt").write_text("".join(f"GPU {i}: Tesla V100-SXM2-16GB (UUID: GPU-{i})\n" for i in range(4)))


def _make_query(folder: Path) -> None:
    rows = [f"{i}, NVIDIA A100-SXM4-80GB, 81920 MiB\n" for i in range(3)]
    (folder / "tool.csv").write_text("index, name, memory.total [MiB]\n" + "".join(rows))


def _make_iperf(folder: Path) -> None:
    end = {"streams": [{"sender": {"min_rtt": 60000}}], "sum_received": {"bits_per_second": 2e8}}
    data = {"start": {"test_start": {"duration": 10, "reverse": 0}}, "intervals": [], "end": end}
    (folder / "tool.json").write_text(json.dumps(data))


def _read_tool(folder: Path) -> object:
    text = next(folder.iterdir()).read_text("utf-8", "replace")
    return with_tool_output(_cluster(), text, "site-0", "site-1") or files_from_text(text)


_UPLOADS = (
    "cluster.formats.uploads.cluster_from_uploads",
    "cluster.formats.matrices.read_matrix",
    "cluster.formats.device_table.read_inventory",
    "cluster.formats.tables.cluster_from_device_tables",
    "cluster.formats.tables.cluster_from_site_tables",
)
CLUSTERS = (
    Reader(
        "cluster file",
        lambda folder: save_cluster(_cluster(), folder / "cluster.json"),
        lambda folder: load_cluster(folder / "cluster.json"),
        (
            "cluster.formats.cluster_files.load_cluster",
            "cluster.formats.cluster_files.cluster_from_json",
            "cluster.formats.cluster_files.cluster_from_data",
        ),
    ),
    Reader(
        "site tables (JSON)",
        lambda folder: (folder / "tables.json").write_text(json.dumps(SITE_TABLES)),
        lambda folder: cluster_from_any_json((folder / "tables.json").read_bytes(), "tables.json"),
        ("cluster.formats.uploads.cluster_from_any_json", "cluster.formats.tables.cluster_from_site_json"),
    ),
    Reader(
        "device tables (CSV)",
        lambda folder: export_tables(_cluster(), folder, "csv"),
        cluster_from_folder,
        ("cluster.formats.tables.cluster_from_folder",),
    ),
    Reader("device tables (NPY)", lambda folder: export_tables(_cluster(), folder, "npy"), cluster_from_folder),
    Reader("site tables (CSV)", _make_site_tables, cluster_from_folder, ("cluster.formats.tables.read_overrides",)),
    Reader("uploaded tables", lambda folder: export_tables(_cluster(), folder, "csv"), _read_uploads, _UPLOADS),
    Reader("uploaded site tables", _make_site_tables, _read_uploads),
    Reader(
        "graph (node-link JSON)",
        lambda folder: (folder / "graph.json").write_text(node_link_json(_cluster())),
        lambda folder: cluster_from_file((folder / "graph.json").read_bytes(), "graph.json"),
        (
            "cluster.formats.uploads.cluster_from_file",
            "cluster.formats.graph_files.cluster_from_node_link",
            "cluster.formats.graphs.cluster_from_networkx",
        ),
    ),
    Reader("graph of sites (JSON)", _make_site_graph, lambda folder: cluster_from_file(*_named(folder / "graph.json"))),
    Reader(
        "graph (GraphML)",
        lambda folder: (folder / "graph.graphml").write_text(graphml_text(_cluster())),
        lambda folder: cluster_from_file(*_named(folder / "graph.graphml")),
        ("cluster.formats.graph_files.cluster_from_graphml",),
    ),
    Reader(
        "nvidia-smi -L",
        _make_gpus,
        _read_tool,
        ("cluster.formats.tool_output.with_tool_output", "cluster.formats.gpu_lists.read_gpus"),
    ),
    Reader("nvidia-smi --query-gpu", _make_query, _read_tool),
    Reader("iperf3 -J", _make_iperf, _read_tool, ("cluster.formats.iperf.read_iperf",)),
    Reader("pasted table", _make_pasted, _read_pasted, ("cluster.formats.uploads.files_from_text",)),
)

# -- models ---------------------------------------------------------------------------------------

GPT2 = {"model_type": "gpt2", "vocab_size": 5000, "n_positions": 128, "n_embd": 64, "n_layer": 3, "n_head": 4}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 5000,
    "max_position_embeddings": 128,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rope_scaling": {"type": "default"},
    "torch_dtype": "bfloat16",
}


def _config(fields: dict[str, object]) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(fields))


def _read_config(folder: Path) -> object:
    return workload_from_config(folder).graph


def _read_uploaded_model(folder: Path) -> object:
    from hetplanner.ui.settings.models.problem import uploaded_workload

    return uploaded_workload((folder / "config.json").read_bytes(), "config.json").graph


SMALL_LLAMA = LLAMA | {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 4}


def _make_model_folder(folder: Path) -> None:
    _config(SMALL_LLAMA)(folder)
    names = [part for parts in parts_of(workload_from_config(SMALL_LLAMA)).values() for part in parts]
    homes = {}
    for i, shard in enumerate(("model-1.safetensors", "model-2.safetensors")):
        save_file({part.name: np.ones(part.shape, np.float32) for part in names[i::2]}, folder / shard)
        homes |= {part.name: shard for part in names[i::2]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    words = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 7, "content": "<s>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(words))


def _with_adapters() -> Workload:
    adapters = Adapters(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
    return workload_from_config(SMALL_LLAMA).replace(fine_tuning=FineTuning(adapters=adapters))


def _make_adapter_folder(folder: Path) -> None:
    workload = _with_adapters()
    parts = [part for (part,) in adapter_parts(workload).values()]
    save_file({part.name: np.ones(part.shape, np.float32) for part in parts}, folder / ADAPTER_FILE)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(adapter_config(workload, "small-llama")))


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 1}))


def _read_tokenizer(folder: Path) -> object:
    tokenizer, end = load_tokenizer(folder)
    return ids_of(tokenizer, "a b"), end, writes_special_tokens(folder)


def _make_table(folder: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"messages": [{"role": "user", "content": f"<{n}>"}], "text": f"text {n}"} for n in range(20)]
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "1.parquet")


def _read_table(folder: Path) -> object:
    columns, rows = read_rows(folder, Columns())
    return [row.messages(columns.messages or "") for row in rows]


def _make_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"}))


MODELS = (
    Reader("table of texts", _make_table, _read_table, ("data.tokenizing.records.read_rows",)),
    Reader("chat template", _make_template, load_template, ("data.tokenizing.chat_template.load_template",)),
    Reader(
        "tokenizer",
        _make_tokenizer,
        _read_tokenizer,
        (
            "data.tokenizing.tokenizer.load_tokenizer",
            "data.tokenizing.tokenizer._end_of_text",
            "data.tokenizing.tokenizer.writes_special_tokens",
        ),
    ),
    Reader(
        "mask of a tokenizer",
        lambda folder: (folder / "tokenizer.json").write_text(
            '{"added_tokens": [{"id": 3, "content": "[CLS]"}, {"id": 7, "content": "[MASK]"}]}'
        ),
        lambda folder: mask_of_tokenizer(folder / "tokenizer.json"),
        ("workload.capturing.capture.mask_of_tokenizer",),
    ),
    Reader(
        "model folder",
        _make_model_folder,
        lambda folder: check_weights(str(folder), workload_from_config(SMALL_LLAMA)),
        (
            "weights.check.check_weights",
            "weights.folder.open_folder",
            "weights.header.read_header",
            "weights.tokenizer.num_words",
        ),
    ),
    Reader(
        "adapter folder",
        _make_adapter_folder,
        lambda folder: check_adapter(str(folder), _with_adapters()),
        ("weights.adapters.check_adapter", "weights.header.read_header"),
    ),
    Reader(
        "workload file",
        lambda folder: save_workload(tiny_workload(), folder / "model.json"),
        lambda folder: load_workload_file(folder / "model.json").graph,
        ("workload.files.load_workload_file", "workload.files.workload_from_json"),
    ),
    Reader(
        "captured workload",
        lambda folder: save_workload(image_workload(), folder / "model.json"),
        lambda folder: load_workload(str(folder / "model.json")).graph,
        ("workload.load.load_workload",),
    ),
    Reader(
        "kept capture",
        lambda folder: (folder / "kept.json.gz").write_bytes(packed(image_workload())),
        lambda folder: load_kept(folder / "kept.json.gz").graph,
        ("workload.capturing.kept.load_kept",),
    ),
    Reader("config of GPT-2", _config(GPT2), _read_config, ("workload.huggingface.workload_from_config",)),
    Reader("config of Llama", _config(LLAMA), _read_config),
    Reader("uploaded model", _config(LLAMA), _read_uploaded_model, ("ui.settings.models.problem.uploaded_workload",)),
)

# -- plans and what belongs to them ---------------------------------------------------------------


@cache
def _plan():
    return chain_plan(shares=(3, 1), cuts=(4,), cluster=small_cluster(4, bandwidth="20 Mbit/s", latency="20 ms"))


@cache
def _swarm():
    return swarm_plan([2, 1], [tiny_workload().boundaries[2]], cluster=small_cluster(3))


CALIBRATION = {
    "format": "hetplanner/calibration@1",
    "cluster": "small",
    "source": "trace",
    "when": "2026",
    "kinds": [{"kind": "CPU generic", "efficiency": 0.5, "observations": 4}],
    "links": [
        {"between": "sites", "from": "site-0", "to": "site-1", "latency": "9 ms", "bandwidth": "40 Mbit/s",
         "observations": 3}
    ],
    "transfer": {"message": "1 ms", "overlap": 0.5},
    "checks": [{"label": "step", "measured_s": 1.0, "before_s": 0.8, "after_s": 1.01}],
}  # fmt: skip
PREEMPTIONS = {
    "format": "hetplanner/preemptions@1",
    "name": "two",
    "duration": "100 s",
    "lives": [
        {"peer": "a", "start": "0 s", "end": "50 s", "speed": 0.5},
        {"peer": "a", "start": "60 s", "end": "90 s"},
        {"peer": "b", "start": "0 s", "end": "100 s"},
    ],
}


def _read_store(folder: Path) -> object:
    shelf = PlanStore(folder)
    return [shelf.load(kept.name) for kept in shelf.kept()]


def _make_store(folder: Path) -> None:
    PlanStore(folder).keep(_plan(), "one")


def _make_links(folder: Path) -> None:
    link = measured.MeasuredLink(from_host="host-0", to_host="host-1", latency_s=0.02, bandwidth_bytes_per_s=6e6)
    nic = measured.MeasuredNic(host="host-1", in_bytes_per_s=5e6, in_is_shared=True)
    found = measured.Measured(links=(link,), nics=(nic,), measured_unix_s=1.7e9)
    measured.save_measured(found, folder / measured.LINKS_FILE)


def _read_links(folder: Path) -> object:
    cluster, found = _plan().problem.cluster, measured.load_measured(folder / measured.LINKS_FILE)
    return measured.corrected(cluster, found, cluster.device_ids), measured.differences(cluster, found)


def _make_probe(folder: Path) -> None:
    link = ProbedLink(
        from_host="host-0",
        to_host="host-1",
        latency_s=0.02,
        latency_spread_s=0.001,
        bytes_per_s=6e6,
        several_bytes_per_s=2e7,
        streams=4,
    )
    back = link.replace(from_host="host-1", to_host="host-0", bytes_per_s=5e6)
    cluster = _plan().problem.cluster
    device = ProbedDevice(
        device=cluster.device_ids[0],
        name="cpu",
        flops_per_s={"float32": 2e10},
        efficiency=0.5,
        memory_bandwidth_bytes_per_s=1e10,
        memory_bytes=2e10,
    )
    nic = ProbedTogether(host="host-1", way="in", connections=2, one_by_one_bytes_per_s=1e7, together_bytes_per_s=5e6)
    hosts = tuple(host.id for host in cluster.hosts)
    record = Record(
        cluster="c", hosts=hosts, begun_unix_s=1.7e9, devices=(device,), links=(link, back), together=(nic,)
    )
    save_record(record, folder / "probe.json")


def _read_probe(folder: Path) -> object:
    cluster, record = _plan().problem.cluster, load_record(folder / "probe.json")
    check_record(record, cluster, "probe.json")
    return probed_cluster(cluster, record, "now"), findings(cluster, record)


def _of_layers(value: object) -> list[object]:
    return [value] * len(made_profile(tiny_workload()).layer_names)


def _npy_bytes(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


PROFILES_OF_TOOLS = {
    "layers.csv": (
        "micro_batch,layer,forward_s,backward_s\n"
        + "".join(f"1,{i},{value},0.02\n" for i, value in enumerate(_of_layers(0.01)))
    ).encode(),
    "sailor.json": json.dumps({"1": {"1": dict(enumerate(_of_layers([0.01, 0.02, 0.001])))}}).encode(),
    "DeviceType.T4_tp1_bs1.json": json.dumps(
        {"execution_time": {"layer_compute_total_ms": _of_layers(30.0), "optimizer_time_ms": 5.0}}
    ).encode(),
    "tiny_T4_1.npy": _npy_bytes(np.array([0.0, *_of_layers(0.01), 0.0, 0.0, 0.0])),
}


def _apply_calibration(folder: Path) -> object:
    from hetplanner.calibration.model import apply_calibration

    return apply_calibration(load_calibration(folder / "calibration.json"), _plan().problem.cluster)


def _write_checkpoint(folder: Path) -> None:
    (folder / rank_file(0)).write_bytes(bytes(range(200)))
    entry = RankFile(file=rank_file(0), bytes=200, sha256=file_digest(folder / rank_file(0)))
    manifest = Manifest(step=3, plan=_plan().digest(), seed=0, ranks=(entry,))
    fields = {"format": "hetplanner/checkpoint@1"} | manifest.model_dump(mode="json")
    (folder / MANIFEST).write_text(json.dumps(fields))


COPIED = "step-00000003"


def _write_copy(folder: Path) -> None:
    (folder / "checkpoints" / COPIED).mkdir(parents=True)
    _write_checkpoint(folder / "checkpoints" / COPIED)
    (folder / "checkpoints" / COPIED / rank_file(0)).unlink()


def _export():
    from hetplanner.ui.export import model as export

    return export


PLANS = (
    Reader(
        "static plan",
        lambda folder: save_plan(_plan(), folder / "plan.json"),
        lambda folder: load_plan(folder / "plan.json"),
        (
            "plan.files.plan_files.load_plan",
            "plan.files.plan_files.plan_from_json",
            "plan.files.plan_files.any_plan_from_data",
            "plan.files.plan_files.any_plan_from_json",
        ),
    ),
    Reader(
        "elastic plan",
        lambda folder: save_plan(_swarm(), folder / "plan.json"),
        lambda folder: load_elastic_plan(folder / "plan.json"),
        ("plan.files.plan_files.load_elastic_plan", "plan.files.plan_files.load_any_plan"),
    ),
    Reader(
        "uploaded plan",
        lambda folder: save_plan(_plan(), folder / "plan.json"),
        lambda folder: _export().checked_plan((folder / "plan.json").read_bytes(), "plan.json"),
        ("ui.export.model.checked_plan",),
    ),
    Reader("plan store", _make_store, _read_store),
    Reader(
        "trace",
        lambda folder: (folder / "trace.json").write_text(json.dumps(simulate(_plan()).to_perfetto())),
        lambda folder: load_trace(folder / "trace.json"),
        ("plan.files.trace_files.load_trace", "plan.files.trace_files.trace_from_json"),
    ),
    Reader("measured links", _make_links, _read_links, ("cluster.measured.load_measured",)),
    Reader("probe's record", _make_probe, _read_probe, ("hosts.probe.record.load_record",)),
    Reader(
        "calibration",
        lambda folder: (folder / "calibration.json").write_text(json.dumps(CALIBRATION)),
        _apply_calibration,
        ("calibration.model.load_calibration", "calibration.model.calibration_from_json"),
    ),
    Reader(
        "measured steps (CSV)",
        lambda folder: (folder / "steps.csv").write_text("plan,seconds\none.json,1.5\ntwo,2e-1\n"),
        lambda folder: read_table(folder / "steps.csv"),
        ("calibration.table_fit.read_table",),
    ),
    Reader(
        "measured steps (JSON)",
        lambda folder: (folder / "steps.json").write_text('[{"plan": "one", "seconds": 1.5}]'),
        lambda folder: read_table(folder / "steps.json"),
    ),
    Reader(
        "profile",
        lambda folder: save_profile(made_profile(tiny_workload()), folder / "profile.json"),
        lambda folder: load_profile(folder / "profile.json"),
        ("profiles.files.load_profile", "profiles.files.profile_from_json"),
    ),
    *(
        Reader(
            f"profile of another tool ({name})",
            lambda folder, name=name, content=content: (folder / name).write_bytes(content),
            lambda folder: import_profile(sorted(folder.iterdir()), tiny_workload(), "T4"),
            ("profiles.imports.registry.imported_profile",),
        )
        for name, content in PROFILES_OF_TOOLS.items()
    ),
    Reader(
        "preemption trace",
        lambda folder: (folder / "trace.json").write_text(json.dumps(PREEMPTIONS)),
        lambda folder: load_preemptions(folder / "trace.json"),
        ("elastic.forecast.preemptions.load_preemptions", "elastic.forecast.preemptions.preemptions_from_json"),
    ),
    Reader(
        "checkpoint",
        _write_checkpoint,
        lambda folder: check_rank_file(folder, load_manifest(folder), 0),
        ("plan.files.checkpoints.load_manifest", "plan.files.checkpoints.check_rank_file"),
    ),
    Reader(
        "copied checkpoint",
        _write_copy,
        lambda folder: copied_manifest(Storage(f"file://{folder}"), COPIED),
        ("storage.copying.copied_manifest",),
    ),
)

# -- runs -----------------------------------------------------------------------------------------


def _make_run(folder: Path) -> None:
    """A static run of three steps as the runtime leaves it, its spans from a simulation."""
    plan, steps = _plan(), 3
    n = len(plan.ranks)
    durations = Durations(
        np.full(n, 0.01), np.full(n, 0.02), np.full(n, 3e-3), np.full(n, 1e-4), np.full(n, 1e-4), np.full(n, 2e-3)
    )
    save_plan(plan, folder / "plan.json")
    save_config(TrainConfig(steps=steps), folder / "run.json")
    write_status(folder / "status.json", RunStatus(run="r", state="finished", created_unix_s=0.0, ranks=n))
    prediction = {"step_s": 0.4, "catalog_step_s": 0.3, "terms": {"clip": 0.01}, "durations": durations.to_data()}
    (folder / "prediction.json").write_text(json.dumps({"format": "hetplanner/prediction@1"} | prediction))
    (folder / "launcher.txt").write_text("rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 3)\n")
    spans = simulate(plan, durations, steps=steps).spans
    for rank in range(n):
        lines: list[dict[str, object]] = [{"type": "phase", "name": "training", "time_s": 1.0}]
        lines += [{"type": "origin", "unix_s": 2.0}, {"type": "profile", "forward_s": 0.01, "cores": 1.0}]
        for step in range(steps):
            own = [span for span in spans if span.rank == rank and span.step == step]
            lines += [{"type": "span"} | span.to_dict() | {"in_flight": 1} for span in own]
            lines.append(
                {"type": "step", "step": step, "start_s": 0.0, "end_s": max(s.end_s for s in own), "loss_sum": 20.0,
                 "num_tokens": 10, "boundary_bytes": 5, "reduce_bytes": 0, "grad_norm": 1.0, "memory_bytes": 2**20}
            )  # fmt: skip
        row = {"peer": (rank + 1) % n, "role": "activation", "sent": 3, "taken": 2, "taken_bytes": 9, "wait_s": 0.1}
        lines += [{"type": "links", "step": 2, "steps": 3, "links": [row]}]
        load = {"host": "a", "cpu": 0.5, "memory": 0.5, "sent": 9, "received": 9, "loopback": 0, "gpus": [[0.5, 0.5]]}
        lines += [{"type": "load", "time_s": 3.0} | load]
        lines += [{"type": "validation", "step": 2, "loss_sum": 9.0, "num_tokens": 4}]
        lines += [{"type": "restart", "attempt": 1, "time_s": 5.0}, {"type": "resumed", "step": 3, "source": None}]
        lines += [{"type": "checkpoint", "step": 3, "seconds": 0.1}, {"type": "error", "text": "x", "traceback": "y"}]
        (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _read_run(folder: Path) -> object:
    run = Run(folder, "r", folder)
    diagnose(run.directory, ("a", "b"), 1)
    report = report_run(run)
    busy_lines(run), traffic_lines(run)
    json.dumps(report.to_data(), allow_nan=False)
    reorder_run(run)
    return run.summary()


EVENTS: list[dict[str, object]] = [
    {"kind": "boot", "boot": 1, "version": [0, 0], "address": "127.0.0.1:1"},
    {"kind": "serving", "peer": "d0", "stage": 0, "incarnation": [1, 1]},
    {"kind": "serving", "peer": "d1", "stage": 0, "incarnation": [1, 2]},
    {"kind": "serving", "peer": "d2", "stage": 1, "incarnation": [1, 3]},
    {"kind": "closed", "seconds": {"prepare": 0.01, "reduce": 0.1, "commit": 0.02}},
    {"kind": "commit", "version": [0, 1], "loss": 5.0, "seconds": 1.0, "peers": [["d0", 0, 1, 0.5], ["d2", 1, 4, 2.0]],
     "flow": [[0, 1, 1]], "sent": [["t", 0, 1]]},
    {"kind": "failures", "counts": {"silent": 1}},
    {"kind": "gone", "peer": "d2", "stage": 1, "how": "lost", "reason": "silent"},
    {"kind": "paused", "stages": [1]},
    {"kind": "not closed", "seconds": {"prepare": 0.03}, "text": "x"},
    {"kind": "move", "peer": "d0", "stage": 1},
    {"kind": "resumed"},
    {"kind": "draining", "peer": "d0"},
    {"kind": "cut", "peer": "d0", "by": "d1"},
    {"kind": "local work lost", "stage": 0, "micro_batches": 1, "of": 4},
    {"kind": "digests", "stage": 0, "different": 2},
    {"kind": "disk", "text": "full"},
    {"kind": "end", "version": [0, 2]},
]  # fmt: skip


def _make_swarm(folder: Path) -> None:
    save_plan(_swarm(), folder / "plan.json")
    save_config(TrainConfig(steps=5), folder / "run.json")
    write_status(folder / "status.json", RunStatus(run="r", state="finished", created_unix_s=99.0, ranks=1))
    events = [{"time_s": 100.0 + i} | event for i, event in enumerate(EVENTS)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    steps = [
        {"type": "step", "step": i, "start_s": float(i), "end_s": i + 1.0, "loss_sum": 5.0, "num_tokens": 10,
         "boundary_bytes": 1, "reduce_bytes": 2}
        for i in range(3)
    ]  # fmt: skip
    (folder / "rank-0.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    ask(folder, PeerOrder("d0", "drain"))


def _read_swarm(folder: Path) -> object:
    orders_so_far(folder)
    parse_events((folder / "events.jsonl").read_bytes())
    return json.dumps(report_swarm(Run(folder, "r", folder)).to_data(), allow_nan=False)


def _make_decisions(folder: Path) -> None:
    decisions = (
        Booted(1),
        Committed(1, Stamp(1, 1), Version(0, 1), 5.0, 1.0),
        CheckpointSaved(1, 0, Version(0, 1)),
    )
    (folder / "decisions.log").write_bytes(b"".join(map(encode_decision, decisions)))


def _make_offers(folder: Path) -> None:
    (folder / "agent.toml").write_text('[data]\nwords = "/data/words.txt"\n[output]\nscratch = "~/runs"\n')
    (folder / "agent.toml").chmod(0o600)


HOSTS = """format = "hetplanner/hosts@1"
port = 29600
[hosts.gpu-a]
ssh = "me@gpu-a.lab"
address = "10.0.0.5"
python = "/opt/venv/bin/python"
folder = "~/runs"
[hosts."a name"]
ssh = "b"
"""


def _make_hosts(folder: Path) -> None:
    (folder / "hosts.toml").write_text(HOSTS)


def _make_launch(folder: Path) -> None:
    _make_hosts(folder)
    save_launch(Launch(launcher="ssh", hosts=read_hosts(folder / "hosts.toml"), run="20261120-a-run"), folder)


AUDIT = ({"event": "submit"}, {"event": "restart", "why": "x"}, {"event": "kill", "peer": "d0"}, {"event": "end"})


def _make_agent(folder: Path) -> None:
    (folder / "agent").mkdir(mode=0o700)
    lines = [json.dumps({"time_s": 1.0 + i, "run": "r"} | line) + "\n" for i, line in enumerate(AUDIT)]
    (folder / "agent/launches.jsonl").write_text("".join(lines))
    (folder / "agent/agent.json").write_text(json.dumps({"pid": 1, "version": "1", "began_s": 5.0}))


def _make_settings(folder: Path) -> None:
    save_config(TrainConfig(steps=5, clip_norm=1.0), folder / "run.json")
    status = RunStatus(run="r", state="failed", created_unix_s=0.0, ranks=2, failed_rank=1, last_lines=("a", "b"))
    write_status(folder / "status.json", status)


def _make_draft(folder: Path) -> None:
    fields = {"format": "hetplanner/draft@1", "words": "moved", "excluded": ["d0"]}
    cluster = {key: value for key, value in cluster_to_data(_cluster()).items() if key != "format"}
    (folder / "drafts").mkdir(mode=0o700)
    (folder / "drafts/abcdefgh.json").write_text(json.dumps(fields | {"cluster": cluster}))


def _read_draft(folder: Path) -> object:
    from hetplanner.ui.cluster.models.draft_files import read_draft

    return read_draft(folder / "drafts/abcdefgh.json")


def _make_search(folder: Path) -> None:
    from hetplanner.planners.baselines.rank_order import RankOrderPlanner
    from hetplanner.ui.jobs.jobs import SearchJob, SearchRequest
    from hetplanner.ui.jobs.search_files import SearchFiles

    plan = RankOrderPlanner().solve(_plan().problem).plan
    problem = plan.problem
    job = SearchJob("0123456789ab", SearchRequest(problem, title="a search"), state="done", plan=plan, value=3.0)
    times = {"evaluations": 5, "seconds": 1.0, "spent_s": 1.0, "searched_s": 1.0, "phase": "search"}
    job.log.append({"type": "event", "best": 3.0, "low": 3.0, "median": 4.0, "high": 5.0} | times)
    job.log.append({"type": "bound", "value": 2.0})
    estimate = plan.estimate.model_dump(mode="json")
    job.log.append({"type": "baseline", "label": "rank order", "value": 4.0, "estimate": estimate})
    job.moments.append(plan_moment(plan, 3.0, 1.0, 5))
    SearchFiles(folder).save(job)


def _read_search(folder: Path) -> object:
    from hetplanner.ui.jobs.search_files import read_search

    return read_search(folder / "searches/0123456789ab.json")


def _make_record(folder: Path) -> None:
    (folder / "sinks").mkdir()
    write_record(folder, SinkRecord(sink="tensorboard", step=3, place="/there", error="gone"))


RUNS = (
    Reader(
        "static run",
        _make_run,
        _read_run,
        (
            "runs.reports.report.report_run",
            "runs.reports.reordering.reorder_run",
            "runs.reports.comparison.Comparer.compare",
            "runs.reading.reader.RunReader.poll",
            "runs.reading.reader.RunReader.trace",
            "runs.reading.reader.RunReader.summary",
        ),
    ),
    Reader("swarm run", _make_swarm, _read_swarm, ("runs.reports.swarm_report.report_swarm",)),
    Reader(
        "page of a static run",
        _make_run,
        lambda folder: report_page(Run(folder, "r", folder)),
        ("plots.report_page.report_page",),
        share=0.02,
    ),
    Reader(
        "page of a swarm run",
        _make_swarm,
        lambda folder: swarm_report_page(Run(folder, "r", folder)),
        ("plots.swarm_report_page.swarm_report_page",),
        share=0.02,
    ),
    Reader(
        "run and status",
        _make_settings,
        lambda folder: (load_config(folder / "run.json"), read_status(folder / "status.json")),
        ("plan.files.train_files.load_config", "runs.status.read_status"),
    ),
    Reader(
        "run annotations",
        lambda folder: write_annotations(folder, Annotations(name="first", notes="a\nb", tags=("x", "y"))),
        read_annotations,
        ("runs.annotations.read_annotations",),
    ),
    Reader(
        "record of a sink",
        _make_record,
        lambda folder: read_record(folder, "tensorboard"),
        ("runs.sinks.record.read_record",),
    ),
    Reader("decision log", _make_decisions, read_ledger, ("swarm.initial_state.read_ledger",)),
    Reader(
        "run to go on from",
        _make_settings,
        lambda folder: (resume_chain(str(folder)), load_config(folder / "run.json")),
    ),
    Reader(
        "swarm description",
        lambda folder: (folder / "swarm.json").write_text(spec_of(_swarm(), TrainConfig(steps=5)).to_json()),
        lambda folder: read_spec((folder / "swarm.json").read_bytes(), "swarm.json"),
        ("swarm.spec.read_spec",),
    ),
    Reader("offers", _make_offers, read_allowed_paths, ("runs.agent.allowed_paths.read_allowed_paths",)),
    Reader(
        "hosts", _make_hosts, lambda folder: read_hosts(folder / "hosts.toml"), ("launchers.hosts_file.read_hosts",)
    ),
    Reader("launch", _make_launch, load_launch, ("launchers.launch_file.load_launch",)),
    Reader(
        "saved on hosts",
        lambda folder: (folder / SAVED_FILE).write_text(saved_text({"a": ["stage-0-lineage-0-step-8.safetensors"]})),
        saved_on_hosts,
        ("swarm.launch.saved_on_hosts.saved_on_hosts",),
    ),
    Reader(
        "next",
        lambda folder: save_next(folder, NextPlan(attempt=1, away=("h0",)), chain_plan([1, 1], [4])),
        load_next,
        ("hosts.changes.next_plan.load_next",),
    ),
    Reader("audit log", _make_agent, lambda folder: (audit_records(folder), agent_lives(folder))),
    Reader("draft", _make_draft, _read_draft, ("ui.cluster.models.draft_files.read_draft",)),
    Reader("search", _make_search, _read_search, ("ui.jobs.search_files.read_search",)),
)

# -- data -----------------------------------------------------------------------------------------


def _make_texts(folder: Path) -> None:
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"<{i}>" + "So long as the river flows, stones grow round. " * 12)


def _make_tokens(folder: Path) -> None:
    (np.arange(2000, dtype="<u2") % 256).tofile(folder / "train.bin")
    (np.arange(400, dtype="<u2") % 256).tofile(folder / "val.bin")
    (folder / "train.json").write_text('{"format": "hetplanner/tokens@1", "dtype": "uint16", "vocab": 256}')


def _make_images(folder: Path) -> None:
    from PIL import Image

    for label, ending in enumerate(("png", "jpg", "gif")):
        (folder / str(label)).mkdir()
        for i in range(4):
            picture = np.full((20, 30, 3), 40 * label + i, dtype=np.uint8)
            Image.fromarray(picture).save(folder / str(label) / f"{i}.{ending}")


def _make_dataset(folder: Path) -> None:
    from datasets import Dataset

    rows = [f"<{i}> So long as the river flows, stones grow round. " * 3 for i in range(20)]
    Dataset.from_dict({"text": [*rows, None, ""], "stars": list(range(22))}).save_to_disk(folder)


def _read_data(folder: Path) -> object:
    """All samples of a split, as a rank would read them."""
    check_data(str(folder), tiny_workload())
    source = open_data(str(folder), tiny_workload())
    ids_B = np.arange(source.num_samples("train"))
    return source.inputs("train", ids_B), source.labels("train", ids_B)


def _read_images(folder: Path) -> object:
    workload = image_workload((3, 12, 16), classes=3)
    check_data(str(folder), workload)
    source = open_data(str(folder), workload)
    return source.inputs("train", np.arange(source.num_samples("train")))


def _read_documents(folder: Path) -> object:
    check_data(str(folder / "data"), tiny_workload())
    source = open_data(str(folder / "data"), tiny_workload())
    return source.inputs("train", np.arange(source.num_samples("train")))


DATA = (
    Reader("text", _make_texts, _read_data, ("data.registry.open_data", "data.registry.check_data")),
    Reader("token files", _make_tokens, _read_data),
    Reader("documents", lambda folder: documents_folder(folder / "data", some_documents(40)), _read_documents),
    Reader("images", _make_images, _read_images),
    Reader("saved data set", _make_dataset, _read_data),
)

# -- with torch -----------------------------------------------------------------------------------


def _make_model(folder: Path) -> None:
    from safetensors.torch import save_file

    from hetplanner.runtime.model.build import StageModel

    workload = tiny_workload(layers=1)
    model = StageModel(workload, 0, len(workload.graph.ops), seed=0)
    tensors = {name: tensor.detach().clone() for name, tensor in model.saved_tensors().items()}
    save_file(tensors, folder / "model.safetensors")
    fields = {"format": "hetplanner/model@1", "workload": workload.model_dump(mode="json", exclude_none=True)}
    (folder / "model.json").write_text(json.dumps(fields))


def _read_model(folder: Path) -> object:
    from hetplanner.runtime.model.sample import load_model

    return load_model(folder)


STATE = ("weights", "mean", "square")


def _make_state(folder: Path) -> None:
    import torch

    from hetplanner.swarm.peer.state import StageState, save_checkpoint

    tensors = {name: torch.arange(40, dtype=torch.float32) for name in STATE}
    save_checkpoint(StageState(0, Version(0, 3), 3, tensors), folder, 1)


def _read_state(folder: Path) -> object:
    from hetplanner.swarm.peer.state import load_checkpoint

    check_checkpoint(checkpoint_path(folder, 0, Version(0, 3)))
    return load_checkpoint(folder, 0, Version(0, 3), STATE)


TENSORS = (
    Reader("saved model", _make_model, _read_model, ("runtime.model.sample.load_model",)),
    Reader(
        "swarm checkpoint",
        _make_state,
        _read_state,
        ("swarm.peer.state.load_checkpoint", "plan.files.stage_checkpoints.check_checkpoint"),
    ),
)

READERS = (*CLUSTERS, *MODELS, *PLANS, *RUNS, *DATA, *TENSORS)
