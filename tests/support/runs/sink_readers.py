"""What sinks hold, read back with the other programs' own readers: step -> (unix time, value by name)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Found = dict[int, tuple[float, dict[str, float]]]
BLOCK, HEADER = 32768, 7


def read_tensorboard(run_dir: Path, run_id: str) -> Found:
    """Every scalar once; a step that is there twice fails."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "sinks" / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    found: Found = {}
    for name in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(name):
            values = found.setdefault(event.step, (event.wall_time, {}))[1]
            assert name not in values, (name, event.step)
            values[name] = event.value
    return found


def read_mlflow(run_dir: Path, run_id: str, uri: str = "") -> Found:
    """Every metric of the one run with this id."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri or f"sqlite:///{run_dir / 'sinks' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hetplanner")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`hetplanner.run` = '{run_id}'")
    found: Found = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            values = found.setdefault(metric.step, (metric.timestamp / 1e3, {}))[1]
            assert name not in values, (name, metric.step)
            values[name] = metric.value
    return found


def read_wandb(run_dir: Path, run_id: str) -> Found:
    """Every row of the history of the offline files, which W&B's own protocol buffers parse."""
    import json

    from wandb.proto import wandb_internal_pb2

    found: Found = {}
    for path in sorted((run_dir / "sinks" / "wandb").glob(f"offline-run-*-{run_id}/*.wandb")):
        for data in _log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = int(row.pop("_step", record.history.step.num))
            assert step not in found, step
            time_s = row.pop("_timestamp")
            found[step] = time_s, {name: value for name, value in row.items() if not name.startswith("_")}
    return found


def _log_records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log behind W&B's header, whole (1) or as first, middle and last parts (2, 3, 4)."""
    assert data[:4] == b":W&B"
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if kind == 0:
            return
        parts = (parts if kind in (3, 4) else b"") + data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):
            yield parts


def read_prometheus(run_dir: Path, run_id: str) -> Found:
    """The newest step alone."""
    from prometheus_client.parser import text_string_to_metric_families

    text = (run_dir / "sinks" / "prometheus" / f"hetplanner-{run_id}.prom").read_text(encoding="utf-8")
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["run"] == run_id
            assert sample.name not in values
            values[sample.name.removeprefix("hetplanner_").removesuffix("_total")] = sample.value
    step, time_s = int(values.pop("step")), values.pop("step_end_time_seconds")
    values.pop("run_over")
    return {step: (time_s, values)}


READERS = {
    "mlflow": read_mlflow,
    "prometheus": read_prometheus,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
}
