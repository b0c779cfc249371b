"""What disks, networks and strangers do to files: bytes changed, cut, doubled or swapped, and data of another kind.

All draws come from one `random.Random`, so that a case is found again by its number.
"""

import copy
import csv
import io
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.files.mutations import ODD, containers

PIECES = (
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\r\n",
    b"\n",
    "\u2028\u202e\uff10é".encode(),
    b'"',
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[" * 5000,
    b'{"a":' * 2000,
    b"9" * 5000,
    b"1e999",
    b"-1",
    b"NaN",
    b"Infinity",
    b"null",
    b"=1+1",
    b",",
    b";",
    b"\t",
    b"\x1b[31m",
    b"\xed\xa0\x80",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
    b"&b;",
    b"<a>" * 2000,
    b"<!--",
)
HUGE = (
    10**30,
    10**400,
    -(10**30),
    2**31,
    2**63,
    2**64,
    1e300,
    -1e300,
    1e-300,
    float("inf"),
    0.5,
    "9" * 5000,
    "a" * 70_000,
    "d\uff10",
    [[]] * 50,
)

Damage = Callable[[random.Random, bytes], bytes]


def damaged(rng: random.Random, name: str, content: bytes, others: Sequence[bytes]) -> bytes:
    """`content` with one to three damages; the kind of data is told by the file's name.

    Args:
        rng: of all draws.
        name: of the file.
        content: as it was.
        others: files of other kinds, one of which may come instead.
    """
    suffix = name.rpartition(".")[2]
    fitting: list[Damage] = [*_ANY]
    if suffix in _BY_SUFFIX:
        fitting += [_BY_SUFFIX[suffix]] * (2 * len(_ANY))
    if rng.random() < 0.03:
        return rng.choice(others)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(fitting)(rng, content)
    return content


# -- any bytes ------------------------------------------------------------------------------------


def _place(rng: random.Random, content: bytes) -> int:
    return rng.randrange(len(content) + 1)


def _flip(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _cut_end(rng: random.Random, content: bytes) -> bytes:
    return content[: _place(rng, content)]


def _cut_out(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    return content[:start] + content[start + rng.choice((1, 4, 40, 400)) :]


def _double(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    end = min(len(content), start + rng.choice((1, 10, 100, 10**6)))
    return content[:end] + content[start:end] + content[end:]


def _insert(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    return content[:start] + rng.choice(PIECES) + content[start:]


def _overwrite(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    noise = rng.randbytes(rng.choice((1, 4, 16)))
    return content[:start] + noise + content[start + len(noise) :]


def _reframe(rng: random.Random, content: bytes) -> bytes:
    return rng.choice(
        (
            b"",
            b"\n",
            b"\x00" * len(content),
            b"\xef\xbb\xbf" + content,
            content.replace(b"\n", b"\r\n"),
            content.replace(b"\n", b"\r"),
            content.decode("latin-1").encode("utf-16"),
            content + content,
        )
    )


_ANY: tuple[Damage, ...] = (_flip, _cut_end, _cut_out, _double, _insert, _overwrite, _reframe)


# -- data -----------------------------------------------------------------------------------------


def change_data(rng: random.Random, data: Any) -> Any:
    """JSON data with one entry removed, added, doubled, moved or put to an odd value."""
    data = copy.deepcopy(data)
    inside = rng.choice(containers(data)) if isinstance(data, dict | list) else None
    if not inside:
        return copy.deepcopy(rng.choice((*ODD, *HUGE)))
    keys = sorted(inside, key=str) if isinstance(inside, dict) else range(len(inside))
    key, odd = rng.choice(keys), copy.deepcopy(rng.choice((*ODD, *HUGE)))
    action = rng.choice(("remove", "change", "change", "change", "nudge", "nudge", "add", "double", "swap"))
    if action == "remove":
        del inside[key]
    elif action == "change":
        inside[key] = odd
    elif action == "nudge":
        inside[key] = _nudged(rng, inside[key])
    elif action == "swap":
        other = rng.choice(keys)
        inside[key], inside[other] = inside[other], inside[key]
    elif isinstance(inside, dict):
        inside[rng.choice(("x", "", "__class__", str(key) + " "))] = inside[key] if action == "double" else odd
    else:
        inside.insert(key, copy.deepcopy(inside[key]) if action == "double" else odd)
    return data


def _nudged(rng: random.Random, value: Any) -> Any:
    """A value of the same type that is a little, or very much, another one."""
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None))
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, 0, value * 1000, value + 10**6, f"{value}"))
    if isinstance(value, float):
        return rng.choice((-value, 0.0, value * 1e6, value * 1e-9, value * 1e30, int(value) if abs(value) < 1e9 else 1))
    if isinstance(value, str):
        return rng.choice((value + "x", value[:-1], value.upper(), value * 2, " " + value, "", "0 s", "1 B", "1e5 s"))
    return rng.choice((value, [value], {"a": value}, []))


def _dumped(data: Any) -> bytes:
    return json.dumps(data).encode("utf-8", "surrogatepass")


def _change_json(rng: random.Random, content: bytes) -> bytes:
    try:
        return _dumped(change_data(rng, json.loads(content)))
    except (ValueError, RecursionError):
        return _flip(rng, content)


def _change_lines(rng: random.Random, content: bytes) -> bytes:
    """A line of JSON changed, doubled, removed or moved."""
    lines = content.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    action = rng.choice(("change", "change", "change", "change", "double", "remove", "swap"))
    if action == "change":
        lines[at] = _change_json(rng, lines[at])
    elif action == "double":
        lines.insert(at, lines[at])
    elif action == "remove":
        del lines[at]
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


def _change_csv(rng: random.Random, content: bytes) -> bytes:
    """A cell changed, or a row or a column doubled or removed."""
    try:
        rows = list(csv.reader(content.decode().splitlines()))
    except (UnicodeDecodeError, csv.Error):
        return _flip(rng, content)
    if not rows or not rows[0]:
        return content
    row = rng.choice(rows)
    column, action = rng.randrange(len(rows[0])), rng.choice(("cell", "cell", "cell", "row", "no row", "column"))
    if action == "cell" and column < len(row):
        texts = (
            "",
            " ",
            "-1",
            "0",
            "nan",
            "inf",
            "1e999",
            "9" * 5000,
            "x",
            "'=1",
            "=1",
            "d\uff10",
            rng.choice(rows[0]),
        )
        row[column] = rng.choice(texts)
    elif action == "row":
        rows.insert(rng.randrange(len(rows)), list(row))
    elif action == "no row":
        rows.remove(row)
    else:
        rows = [line[:column] + line[column + 1 :] for line in rows]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


def _change_npy(rng: random.Random, content: bytes) -> bytes:
    """A header that claims something else, behind a right length."""
    header = rng.choice(
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (100000000, 100000000), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3L, 3L), }",
            "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f2', 'fortran_order': 1, 'shape': [3, 3], }",
            "(" * 3000,
            "'''",
            "0777",
            "1 +",
            "\x00",
        )
    ).encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content[rng.choice((0, 80, 128)) :]


def _change_tensors(rng: random.Random, content: bytes) -> bytes:
    """The JSON header of a safetensors file changed, its length mended in most cases."""
    size = int.from_bytes(content[:8], "little")
    header = _change_json(rng, content[8 : 8 + size])
    length = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**40, 2**63))
    return struct.pack("<Q", length) + header + content[8 + size :]


XML_PARTS = re.compile(rb'"[^"<>]*"|(?<=>)[^<>]+(?=<)')
XML_TEXTS = (b"", b" ", b"-1", b"1e999", b"9" * 5000, b"nan", b"true", b"d\xef\xbc\x90", b"&lt;a&gt;", b"&#0;", b"int")


def _change_xml(rng: random.Random, content: bytes) -> bytes:
    """The value of an attribute or a text changed or exchanged for another one's, or an element doubled or removed."""
    if rng.random() < 0.3:
        return _change_rows(rng, content)
    parts = list(XML_PARTS.finditer(content))
    if not parts:
        return _flip(rng, content)
    part, other = rng.choice(parts), rng.choice(parts)
    new = rng.choice((*XML_TEXTS, other[0].strip(b'"'), part[0].strip(b'"') * 2))
    quote = b'"' if part[0].startswith(b'"') else b""
    return content[: part.start()] + quote + new + quote + content[part.end() :]


def _change_rows(rng: random.Random, content: bytes) -> bytes:
    """A line doubled, removed, moved, or a word of it exchanged for another line's."""
    lines = content.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    action = rng.choice(("double", "remove", "swap", "word", "word"))
    if action == "double":
        lines.insert(at, lines[at])
    elif action == "remove":
        del lines[at]
    elif action == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        words, others = lines[at].split(b" "), lines[other].split(b" ")
        words[rng.randrange(len(words))] = rng.choice((*XML_TEXTS, rng.choice(others)))
        lines[at] = b" ".join(words)
    return b"\n".join(lines)


_BY_SUFFIX: dict[str, Damage] = {
    "graphml": _change_xml,
    "txt": _change_rows,
    "json": _change_json,
    "jsonl": _change_lines,
    "csv": _change_csv,
    "npy": _change_npy,
    "safetensors": _change_tensors,
}
