"""Messages as plain JSON values and back: every field is checked against its declared type and bound.

What comes in is data from strangers: nothing is executed or guessed, and what does not fit is refused with its place.
Tuples are lists, a message is an object with its class in `type`.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from hetplanner.elastic.protocol.messages import Message
from hetplanner.errors import InvalidInput


def encode_message(message: Message) -> dict[str, Any]:
    """The message as JSON values, with its class."""
    return cast(dict[str, Any], msgspec.to_builtins(message, order="deterministic"))


def decode_message(data: Any) -> Message:
    """The message that JSON values say.

    Raises:
        InvalidInput: it is none, or a field has another type or size than declared.
    """
    try:
        return cast(Message, msgspec.convert(data, Message))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"message: {error}") from None
