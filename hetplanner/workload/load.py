"""One entry for everything that MODEL may be on the command line or in the app."""

from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput
from hetplanner.workload.huggingface import workload_from_config
from hetplanner.workload.presets import preset, preset_names
from hetplanner.workload.workload import Workload


def load_workload(model: str, **overrides: Any) -> Workload:
    """A workload by a preset's name or the path of a Hugging Face `config.json` (or of its folder).

    Args:
        model: name or path; a preset's name wins over a file of that name.
        **overrides: as for `preset`: layers, global_batch, micro_batch, seq_len, dtype, recompute; None = as is.

    Raises:
        InvalidInput: an unknown name, a missing or unsupported config, or a broken law.
    """
    looks_like_path = "/" in model or "\\" in model or model.endswith(".json")
    if model not in preset_names() and (looks_like_path or Path(model).is_dir()):
        return workload_from_config(Path(model), **overrides)
    if not model.isprintable():
        raise InvalidInput(f"model: must be a preset's name or the path of a config.json, got {model!r:.60}")
    return preset(model, **overrides)
