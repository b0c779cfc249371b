"""Text from the model that a run has trained; torch runs in a process of its own, one at a time for all pages."""

import threading
from pathlib import Path
from typing import Any

import param

from hetplanner.errors import RunError
from hetplanner.runs.sampling import sample_text
from hetplanner.ui.shell.models.calls import Calls
from hetplanner.ui.shell.models.session import Session

MAX_PROMPT = 4000
_one_at_a_time = threading.BoundedSemaphore(1)


class TextModel(param.Parameterized):
    """A prompt and how the model goes on."""

    prompt = param.String(default="def main(", doc="At most MAX_PROMPT characters count.")
    tokens = param.Integer(default=200, bounds=(1, 2000))
    temperature = param.Number(default=0.8, bounds=(0, 5))
    seed = param.Integer(default=0, bounds=(0, 2**31 - 1))
    busy = param.Boolean(default=False)
    text = param.String(default="")
    error = param.String(default="")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self.session = session
        self.calls = Calls(session)
        self._folder: Path | None = None
        self._run_id = ""

    def open(self, run_id: str, folder: Path | None) -> None:
        """The model of another run."""
        self._run_id, self._folder = run_id, folder
        self.text = self.error = ""

    def generate(self) -> None:
        """Starts a process that writes on from the prompt; it takes seconds."""
        if self._folder is None or self.busy:
            return
        if not self.session.unlocked:
            self.error = "generate: type the launch token first; it is printed in the server's terminal"
            return
        folder, run_id, prompt = self._folder, self._run_id, self.prompt[-MAX_PROMPT:]
        options = {"tokens": self.tokens, "temperature": float(self.temperature), "seed": self.seed}
        self.busy, self.error = True, ""
        self.calls.make(
            lambda: _sampled(folder, prompt, run_id, options), lambda text: self._done(run_id, text), self._failed
        )

    def _done(self, run_id: str, text: str) -> None:
        self.busy = False
        if run_id == self._run_id:
            self.text = text

    def _failed(self, text: str) -> None:
        self.busy, self.error = False, text

    def take(self) -> None:
        """Takes the answer."""
        self.calls.take()


def _sampled(folder: Path, prompt: str, run_id: str, options: dict[str, Any]) -> str:
    if not _one_at_a_time.acquire(timeout=30):
        raise RunError("generate: other pages are generating; try again in a moment")
    try:
        return sample_text(folder, prompt, name=run_id, **options)
    finally:
        _one_at_a_time.release()
