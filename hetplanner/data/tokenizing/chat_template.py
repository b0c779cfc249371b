"""Chats as text, by the chat template of a model folder, in a process that is stopped when it takes too long."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hetplanner.data.tokenizing.tokenizer import Marked
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import one_line, parse_json, read_text

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
MAX_TEMPLATE_BYTES = 2**20
MAX_CONFIG_BYTES = 16 * 2**20
MAX_ANSWER_CHARACTERS = 256 * 2**20
START_S, TEMPLATE_S = 120.0, 30.0
"""Seconds for importing transformers, and for rendering chats once."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@reader("chat template", at="model")
def load_template(model: Path) -> tuple[str, dict[str, str]]:
    """A folder's chat template, and the special tokens that it may name.

    Raises:
        InvalidInput: there is none, or a file is damaged.
    """
    config = model / CONFIG_FILE
    fields = parse_json(read_text(config, MAX_CONFIG_BYTES), CONFIG_FILE) if config.is_file() else {}
    if not isinstance(fields, dict):
        raise InvalidInput(f"{config}: must be a JSON object, got {type(fields).__name__}")
    if (model / TEMPLATE_FILE).is_file():
        template: Any = read_text(model / TEMPLATE_FILE, MAX_TEMPLATE_BYTES).decode(errors="replace")
    else:
        template = fields.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_BYTES:
        raise InvalidInput(
            f"{model}: has no chat template ({TEMPLATE_FILE}, or chat_template in {CONFIG_FILE}); add one"
        )
    tokens = {name: _content(fields.get(name)) for name in SPECIAL_TOKENS}
    return template, {name: text for name, text in tokens.items() if text is not None}


def _content(token: Any) -> str | None:
    """A token's text, written as such or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


class ChatTemplate:
    """Renders chats; a context, in which the process lives.

    Args:
        model: folder of the template.

    Raises:
        InvalidInput: no template, or transformers is not installed.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        self._template, self._tokens = load_template(model)
        if find_spec("transformers") is None:
            raise InvalidInput("a chat template needs transformers; install it: pip install 'hetplanner[hf]'")

    def __enter__(self) -> Self:
        """Starts the process. Raises InvalidInput: it does not start."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hetplanner.data.tokenizing.chat_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
        )  # fmt: skip
        self._ask({"template": self._template, "tokens": self._tokens}, START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()

    def render(self, chats: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[Marked]:
        """Chats as text with their answers marked.

        Args:
            chats: place and messages.

        Raises:
            InvalidInput: the template refuses a chat, leaves no way to find the answers, or takes too long.
        """
        answer = self._ask([messages for _, messages in chats], TEMPLATE_S)
        if "error" in answer:
            place = chats[min(int(answer["chat"]), len(chats) - 1)][0]
            raise InvalidInput(f"{place}: the chat template of {self._model} fails: {one_line(str(answer['error']))}")
        return [Marked(text, tuple((int(a), int(b)) for a, b in spans)) for text, spans in answer["chats"]]

    def _ask(self, request: Any, limit_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(limit_s, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline(MAX_ANSWER_CHARACTERS)
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line.endswith("\n"):
            raise InvalidInput(
                f"{self._model}: its chat template takes more than {limit_s:.0f} s, or more memory than it may; use"
                " another one"
            )
        found: dict[str, Any] = json.loads(line)
        return found
