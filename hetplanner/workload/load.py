"""One entry for everything that MODEL may be on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json, read_text
from hetplanner.workload.capturing.capture import CAPTURE_TIMEOUT_S, OnProgress, capture_config
from hetplanner.workload.files import workload_from_data
from hetplanner.workload.huggingface import has_formulas, workload_from_config
from hetplanner.workload.presets import changed_workload, preset, preset_names
from hetplanner.workload.workload import Workload


@reader("model", at="model")
def load_workload(
    model: str,
    *,
    fresh: bool = False,
    capture_timeout_s: float = CAPTURE_TIMEOUT_S,
    on_progress: OnProgress | None = None,
    on_kept: Callable[[], object] | None = None,
    **overrides: Any,
) -> Workload:
    """A workload by a preset's name, or from a workload file or a Hugging Face `config.json` (or its folder).

    A config of another family than GPT-2 and Llama is captured from transformers (`pip install 'hetplanner[hf]'`) in
    a process of its own.

    Args:
        model: name or path; a preset's name wins over a file of that name.
        fresh, capture_timeout_s, on_progress, on_kept: of a capture, see `capture_config`.
        **overrides: as for `preset`: layers, global_batch, micro_batch, seq_len, dtype, recompute, boundary_layers,
            shared_layers, optimizer, adapters, freeze_layers; None = as is.

    Raises:
        InvalidInput: an unknown name, a missing or unsupported config, or a broken law.
    """
    looks_like_path = "/" in model or "\\" in model or model.endswith(".json")
    if model not in preset_names() and (looks_like_path or Path(model).is_dir()):
        settings = {
            "fresh": fresh, "timeout_s": capture_timeout_s, "on_progress": on_progress, "on_kept": on_kept
        }  # fmt: skip
        return _from_file(Path(model), overrides, settings)
    if not model.isprintable():
        raise InvalidInput(f"model: must be a preset's name or the path of a config.json, got {model!r:.60}")
    return preset(model, **overrides)


def _from_file(path: Path, overrides: dict[str, Any], settings: dict[str, Any]) -> Workload:
    file = path / "config.json" if path.is_dir() else path
    data, place = parse_json(read_text(file), one_line(file.name)), one_line(file.name)
    if isinstance(data, dict) and "format" in data:
        return changed_workload(workload_from_data(data, place), place, **overrides)
    if not isinstance(data, dict) or has_formulas(data):
        return workload_from_config(path, **overrides)
    sizes = {name: overrides.pop(name, None) for name in ("micro_batch", "global_batch", "seq_len")}
    captured = capture_config(path, **sizes, **settings)
    return changed_workload(captured, place, **overrides)
