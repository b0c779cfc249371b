"""The process that renders chats: `python -m hetplanner.data.tokenizing.chat_process`, fed by `chat_template`.

A chat template comes from a stranger. transformers compiles it in jinja's immutable sandbox; what it may take of memory
is limited here, and of time by the process that reads. Lines of JSON in, lines of JSON out.
"""

import json
import re
import sys
from typing import Any

from hetplanner.data.tokenizing.tokenizer import Span

MORE_BYTES = 2 * 2**30
"""Of memory that a template may take."""
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
ASSISTANT = "assistant"


class CannotMark(Exception):
    """A template that leaves no way to tell answers from the rest."""


def main() -> None:
    """Reads the template, then chats, until the input ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit_memory()
    first = json.loads(sys.stdin.readline())
    template, tokens = first["template"], first["tokens"]

    def render(messages: list[dict[str, Any]], **options: Any) -> tuple[str, list[Span]]:
        found: Any = render_jinja_template([messages], chat_template=template, **options, **tokens)
        texts, spans = found
        return texts[0], spans[0] if spans else []

    _say({"ready": True})
    for line in sys.stdin:
        answers: list[Any] = []
        try:
            for messages in json.loads(line):
                answers.append(_marked(render, messages, has_marks=bool(GENERATION.search(template))))
            _say({"chats": answers})
        except Exception as error:  # of jinja, of the sandbox, or raised by the template itself
            _say({"error": f"{type(error).__name__}: {error}"[:300], "chat": len(answers)})


def _marked(render: Any, messages: list[dict[str, Any]], *, has_marks: bool) -> tuple[str, list[Span]]:
    """The rendered chat, and where its answers are."""
    if has_marks:
        text, spans = render(messages, return_assistant_tokens_mask=True)
        return text, list(spans)
    text, _ = render(messages)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        before = render(messages[:i], add_generation_prompt=True)[0] if i else ""
        after, _ = render(messages[: i + 1])
        if not (text.startswith(after) and after.startswith(before)):
            raise CannotMark(
                f"message {i + 1} changes what stands around it, so answers cannot be found; mark them in the template"
                " with {% generation %} and {% endgeneration %}"
            )
        spans.append((len(before), len(after)))
    return text, spans


def _limit_memory() -> None:
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_BYTES, now + MORE_BYTES))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
