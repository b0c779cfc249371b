"""A Hugging Face model folder: config.json, and tensors in one safetensors file or in shards with an index."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetplanner.errors import InvalidInput, one_line
from hetplanner.reading import reader
from hetplanner.schema import parse_json, read_text
from hetplanner.weights.header import StoredTensor, read_header

CONFIG = "config.json"
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 2**20
MAX_INDEX_BYTES = 32 * 2**20
MAX_SHARDS = 10_000


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose files fit together.

    Attributes:
        path: of the folder.
        config: content of its config.json.
        tensors: all tensors of its files, by name.
    """

    path: Path
    config: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, StoredTensor] = field(repr=False)


def read_config(path: Path, name: str, wanted: str) -> dict[str, Any]:
    """The JSON object in a file of a folder of weights.

    Args:
        path: of the folder.
        name: of the file.
        wanted: what the folder has to hold.

    Raises:
        InvalidInput: no such folder or file, or no object in it.
    """
    place = one_line(str(path))
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise InvalidInput(f"{place}: {what}; give a folder with {wanted}")
    config = parse_json(read_text(path / name, MAX_CONFIG_BYTES), name)
    if not isinstance(config, dict):
        raise InvalidInput(f"{place}: {name}: must be a JSON object, got {type(config).__name__}")
    return config


@reader("model folder", at="path")
def open_folder(path: Path) -> ModelFolder:
    """Reads config, index and headers; no tensor is read, nothing is unpickled.

    Raises:
        InvalidInput: no such folder, no weights in safetensors, or files that do not fit together.
    """
    place, config = one_line(str(path)), read_config(path, CONFIG, "config.json and *.safetensors")
    if (path / INDEX).exists():
        return ModelFolder(path, config, _sharded(path))
    if (path / WHOLE).exists():
        return ModelFolder(path, config, read_header(path / WHOLE))
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        raise InvalidInput(
            f"{place}: holds pickled weights only, which can run code; convert them where you trust them: python -c"
            " \"from transformers import AutoModel as M; M.from_pretrained('IN').save_pretrained('OUT')\", with the"
            " model's own class"
        )
    raise InvalidInput(f"{place}: holds neither {WHOLE} nor {INDEX}; save the model with save_pretrained")


def _sharded(path: Path) -> dict[str, StoredTensor]:
    index = parse_json(read_text(path / INDEX, MAX_INDEX_BYTES), INDEX)
    homes = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(homes, dict) or not all(isinstance(name, str) for name in homes.values()):
        raise InvalidInput(f"{INDEX}: weight_map: must give a file for every tensor; save the model again")
    files = sorted(set(homes.values()))
    if len(files) > MAX_SHARDS:
        raise InvalidInput(f"{INDEX}: weight_map: must name at most {MAX_SHARDS} files, names {len(files)}")
    tensors: dict[str, StoredTensor] = {}
    for name in files:
        found = read_header(_shard(path, name))
        told = {tensor for tensor, home in homes.items() if home == name}
        if odd := sorted(told ^ found.keys()):
            where = "is not in it" if odd[0] in told else "is not in the index"
            raise InvalidInput(
                one_line(f"{name}: does not fit {INDEX}: tensor {odd[0]!r:.120} {where}; take a new copy of the folder")
            )
        tensors |= found
    return tensors


def _shard(path: Path, name: str) -> Path:
    """A file of the folder itself: no path, and no link to somewhere else but as the cache of the hub has them."""
    place = one_line(f"{INDEX}: weight_map: file {name!r:.120}")
    if not name.endswith(".safetensors") or "/" in name or "\\" in name or "\0" in name:
        raise InvalidInput(f"{place} must be the name of a .safetensors file in the folder; correct the index")
    if not (path / name).exists():
        raise InvalidInput(f"{place} is missing from {one_line(str(path))}; download the folder again")
    return path / name
