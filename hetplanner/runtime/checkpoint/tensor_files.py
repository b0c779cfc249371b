"""Files of tensors whose failures are those of any other file."""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file. Raises OSError with the system's number, where the library words it (ENOSPC: full)."""
    try:
        save_file(dict(tensors), path, metadata=dict(metadata))
    except SafetensorError as error:
        found = _SYSTEM_ERROR.search(str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number) if found else str(error), str(path)) from error
