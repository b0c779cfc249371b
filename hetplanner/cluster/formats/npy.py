"""Tables of numbers from NPY files of strangers: the header is checked before an array is made of it."""

import io
import warnings
from collections.abc import Callable

import numpy as np

from hetplanner.arrays import FloatArray
from hetplanner.errors import InvalidInput


def array_of_npy(place: str, data: bytes, *, ndim: int, check: Callable[..., object]) -> FloatArray:
    """The numbers of a NPY file.

    Args:
        place: what to call the file in messages.
        data: its content.
        ndim: dimensions that it must have.
        check: takes the dimensions that the header claims, and refuses what is too much.

    Raises:
        InvalidInput: it is no such file, or holds something else.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2's headers, which are read all the same
            shape, by_columns, dtype = read_header(stream)
    except Exception:  # numpy lets out what its parsers raise: ValueError, SyntaxError, TokenError and others
        raise InvalidInput(f"{place}: not a NPY file of version 1 or 2; write it with numpy.save") from None
    if len(shape) != ndim or dtype.kind not in "fiu":
        what = "table" if ndim == 2 else "row"
        raise InvalidInput(f"{place}: must hold a {what} of numbers, holds {dtype} of shape {shape!r:.60}")
    check(*shape)
    count = int(np.prod(shape, dtype=np.int64))
    if len(data) - stream.tell() != count * dtype.itemsize:
        sizes = " × ".join(map(str, shape))
        raise InvalidInput(f"{place}: must hold {sizes} numbers, its size does not fit; write it again")
    array = np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if by_columns else "C")
    with np.errstate(over="ignore", invalid="ignore"):  # a long double out of range becomes infinite
        values = array.astype(np.float64)
    values[np.isnan(values)] = np.nan  # quiet ones: arithmetic with others warns
    return values
