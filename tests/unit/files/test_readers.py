"""No reader is left out: what opens or parses a file stands under the law of `hetplanner.reading`, and is fuzzed."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.support.files.readers import READERS

SPEC = find_spec("hetplanner")
assert SPEC is not None
PACKAGE = Path(str(SPEC.origin)).parent
OPENING = {"checked_json", "load_from_disk", "memmap", "parse_json", "read_bytes", "read_text", "safe_open"}
"""Names of functions that read files or take their content apart, whoever has them."""
OWNED = {
    ("csv", "DictReader"), ("csv", "reader"), ("gzip", "decompress"), ("Image", "open"), ("json", "load"),
    ("json", "loads"), ("np", "fromfile"), ("np", "load"), ("pickle", "load"), ("pickle", "loads"), ("tomllib", "load"),
    ("tomllib", "loads"), ("torch", "load"),
}  # fmt: skip
"""(owner, function) beside those; opening a path in order to read counts as well."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "the law itself": ("schema.checked_json", "schema.parse_json", "schema.read_text", "schema.utf8_text"),
    "a part of readers under the law": (
        "calibration.table_fit._json_rows",
        "calibration.table_fit._csv_rows",
        "cluster.formats.matrices.read_rows",
        "cluster.formats.matrices.read_source",
        "cluster.formats.gpu_lists._queried",
        "data.images._decoded",
        "data.saved_datasets.load_saved",
        "data.text._bytes",
        "data.tokenizing.records._json_lines",
        "data.text._size",
        "data.tokens._info",
        "data.tokens._mapped",
        "plan.files.checkpoints.file_digest",
        "plan.files.train_files._fields",
        "profiles.imports.csv_table._lines",
        "profiles.imports.metis._cell",
        "profiles.imports.registry.import_profile",
        "profiles.imports.sailor._is_of",
        "profiles.imports.sailor.read_sailor",
        "runs.reading.history.span_lines",
        "runs.reading.reader.RunReader.prediction",
        "runs.reading.tail.LineTail.lines",
        "runs.reading.tail.text_from",
        "runtime.model.sample._opened",
        "runtime.watch.StopWatcher._is_signalled",
        "swarm.launch.requests.orders_so_far",
        "weights.folder._sharded",
        "weights.folder.read_config",
        "weights.header.same_bytes",
        "weights.header.values_of",
        "weights.tokenizer._object",
        "workload.capturing.capture._config_of",
        "workload.huggingface._read",
        "workload.load._from_file",
    ),
    "a file of this package": (
        "kernels.source_digest",
        "plots.film._file",
        "ui.patches.patches.patch_scripts",
        "workload.capturing.kept.digest_of",
        "workload.presets._captured",
    ),
    "bytes as they are, or a file of the system": (
        "capture.__main__._code_provenance",
        "cli.cluster._read_any",
        "data.tokenizing.chat_process._limit_memory",
        "hosts.on_host.facts._mark_of_file",
        "hosts.head.Head._order",
        "hosts.head._certificates",
        "hosts.on_host.keeper._last_text",
        "hosts.on_host.node._start_ticks",
        "hosts.on_host.node._last_line",
        "hosts.on_host.node.end_processes",
        "hosts.slurm_job.Job._log_lines",
        "hosts.slurm_job._job_in",
        "hosts.on_host.node._pid",
        "hosts.on_host.sending.Growing.frames",
        "hosts.on_host.sending.Whole.frames",
        "launchers.capacity.memory",
        "launchers.isolate.enter_network_of",
        "runs.agent.connection._last_words",
        "runs.agent.memory_events._cgroup_files",
        "runs.agent.memory_events._count",
        "liveness.process_facts._stat",
        "liveness.process_facts.tracer_of",
        "liveness.heartbeat.born_ticks",
        "liveness.notices._aws",
        "liveness.notices._azure",
        "runtime.measure.profile._machine",
        "runtime.session._resident_bytes",
        "swarm.launch.faults.FaultInjector._follow",
        "swarm.launch.restarts.last_words",
        "swarm.main._coordinate",
        "swarm.wire.certificates.load_credentials",
        "ui.security.local_user.user_at",
        "ui.run.models.report._made",
    ),
    "written by another process of the same run, which ends with a line if it is damaged": (
        "runtime.forked_ranks._become_rank",
        "capture.__main__.main",
        "data.tokenizing.chat_process.main",
        "data.tokenizing.chat_template.ChatTemplate._ask",
        "hosts.on_host.keeper.Keeper.__init__",
        "hosts.on_host.node._state",
        "hosts.probe.devices._answer",
        "profiles.measuring._lines",
        "runtime.measure.layer_profile.main",
        "runtime.checkpoint.save.join_parts",
        "swarm.event_log.EventLog._has_told",
        "swarm.event_log._attempts",
        "swarm.decision_file.DecisionFile.__init__",
        "ui.jobs.compute._ComputeChild.answer",
        "ui.jobs.compute_process.ComputeProcess.serve",
        "ui.jobs.jobs._Worker._read",
        "ui.jobs.kernel_work.KernelWork._read",
        "ui.jobs.probe_jobs._Worker._run",
        "ui.jobs.probe_worker.main",
        "ui.jobs.worker.Worker.listen",
        "workload.capturing.capture._await",
        "workload.capturing.capture._captured",
    ),
    "a record of fixed size in shared memory": ("liveness.heartbeat.read_heartbeats",),
    "a message or an address, whose handler gives InvalidInput back": (
        "hosts.framing._header",
        "hosts.probe.streams.Streams._serve",
        "runs.agent.service.PeersHandler._ask",
        "runs.agent.service.ShutdownHandler._shut_down",
        "runs.agent.service.read_start_request",
        "swarm.final_save._digest_of",
        "swarm.peer.state._checked_head",
        "swarm.peer.state_keeper.StateKeeper.give",
        "swarm.wire.frames.split_frame",
        "ui.plan.models.explain.ExplainModel.restore",
        "ui.settings.models.form.SettingsForm.restore",
        "ui.simulate.model.SimulateModel._restore_due",
    ),
}
"""Why a function that opens or parses something does not stand under the law by itself."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """'module.Class.function' without the package, of every function outside of others."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        yield from _functions(ast.parse(path.read_text(encoding="utf-8")).body, module)


def _functions(body: list[ast.stmt], place: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield f"{place}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{place}.{node.name}")


def opens(function: Function) -> set[str]:
    """What it calls that reads a file, or takes a file's content apart."""
    found = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and (called.id in OPENING or called.id == "open"):
            found.add(called.id)
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if called.attr in OPENING or (owner, called.attr) in OWNED or _is_read(called, node):
                found.add(f"{owner}.{called.attr}")
    return found


def _is_read(called: ast.Attribute, call: ast.Call) -> bool:
    """A path opened for reading."""
    mode = call.args[0] if call.args else None
    return called.attr == "open" and isinstance(mode, ast.Constant) and str(mode.value) in ("r", "rb")


def stands_under_the_law(function: Function) -> bool:
    """Under `@reader`, with `reading(...)` inside, passing over whatever is DAMAGED, or of the package's own files."""
    package = any(isinstance(n, ast.Call) and _name(n.func) == "files" for n in ast.walk(function))
    decorated = any(isinstance(d, ast.Call) and _name(d.func) == "reader" for d in function.decorator_list)
    inside = any(isinstance(n, ast.withitem) and "reading(" in ast.unparse(n) for n in ast.walk(function))
    passing = any(isinstance(n, ast.ExceptHandler) and "DAMAGED" in ast.unparse(n) for n in ast.walk(function))
    return package or decorated or inside or passing


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def test_whoever_opens_a_file_stands_under_the_law_or_has_a_reason():
    allowed = [name for names in ALLOWED.values() for name in names]
    left_out = {
        f"{name} ({', '.join(sorted(opens(function)))})"
        for name, function in functions()
        if opens(function) and not stands_under_the_law(function) and name not in allowed
    }
    assert left_out == set(), "put them under hetplanner.reading.reader and into tests/support/files/readers.py"
    assert len(allowed) == len(set(allowed))


def test_the_list_of_reasons_holds_nothing_that_needs_none():
    known = {name: function for name, function in functions() if opens(function)}
    idle = {
        name for names in ALLOWED.values() for name in names if name not in known or stands_under_the_law(known[name])
    }
    assert idle == set()


def test_every_reader_is_fuzzed():
    covered = {name for reader in READERS for name in reader.covers}
    under_the_law = {
        name
        for name, function in functions()
        if any(isinstance(d, ast.Call) and _name(d.func) == "reader" for d in function.decorator_list)
    }
    by_a_process = {"workload.capturing.capture.capture_config"}  # see the test of captures
    of_a_rank = {"runtime.checkpoint.files.load_state"}  # only what `check_rank_file` has found whole gets there
    assert under_the_law - covered == by_a_process | of_a_rank
    assert covered <= under_the_law
