"""One message and the tensors that travel beside it, as bytes.

A frame is a magic word with the format's version, the length of a JSON header, the header, and raw bytes that the
header cuts into parts. Everything is checked before it is used; parts are views, nothing is copied.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from hetplanner.elastic.protocol.encoding import decode_message, encode_message
from hetplanner.elastic.protocol.messages import Message
from hetplanner.errors import InvalidInput
from hetplanner.schema import parse_json

MAGIC = b"HPSW\x01"
"""The last byte is the version of the format."""
MAX_HEADER_BYTES = 4 * 2**20
MAX_PARTS = 8
_LENGTH = struct.Struct("<I")
_START = len(MAGIC) + _LENGTH.size

Part = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """A message and its parts (raw bytes of tensors)."""

    message: Message
    parts: tuple[memoryview, ...] = ()


def encode_frame(message: Message, parts: Sequence[Part] = ()) -> bytes:
    """The bytes of a message with its parts."""
    return join_frame({"message": encode_message(message)}, parts)


def decode_frame(data: bytes) -> Frame:
    """A message and its parts. Raises InvalidInput when the bytes are no frame of this version."""
    fields, parts = split_frame(data)
    if fields.keys() != {"message"}:
        raise InvalidInput(f"frame: must hold a message alone, got {', '.join(map(repr, list(fields)[:5])):.200}")
    return Frame(decode_message(fields["message"]), parts)


def join_frame(fields: dict[str, Any], parts: Sequence[Part]) -> bytes:
    """A header with any fields, and parts."""
    header = json.dumps(fields | {"parts": [len(part) for part in parts]}, separators=(",", ":")).encode()
    return b"".join((MAGIC, _LENGTH.pack(len(header)), header, *parts))


def split_frame(data: bytes) -> tuple[dict[str, Any], tuple[memoryview, ...]]:
    """The header's fields and the parts. Raises InvalidInput."""
    if data[: len(MAGIC)] != MAGIC:
        version = data[len(MAGIC) - 1 : len(MAGIC)] if data[: len(MAGIC) - 1] == MAGIC[:-1] else b""
        found = f"version {version[0]}" if version else f"{bytes(data[:8])!r}"
        raise InvalidInput(f"frame: must be of our format, version {MAGIC[-1]}, got {found}; use equal versions")
    if len(data) < _START:
        raise InvalidInput(f"frame: must have at least {_START} bytes, got {len(data)}")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    if length > min(MAX_HEADER_BYTES, len(data) - _START):
        raise InvalidInput(f"frame: header: must be at most {MAX_HEADER_BYTES} bytes and inside, says {length}")
    end = _START + length
    fields = parse_json(bytes(memoryview(data)[_START:end]), "frame")
    sizes = fields.pop("parts", None) if isinstance(fields, dict) else None
    if not isinstance(sizes, list) or len(sizes) > MAX_PARTS or not all(type(n) is int and n >= 0 for n in sizes):
        raise InvalidInput(f"frame: parts: must be at most {MAX_PARTS} lengths, got {sizes!r:.60}")
    if end + sum(sizes) != len(data):
        raise InvalidInput(f"frame: parts: {sum(sizes)} bytes are announced, {len(data) - end} came")
    parts, view = [], memoryview(data)
    for size in sizes:
        parts.append(view[end : end + size])
        end += size
    return fields, tuple(parts)
