"""Name, notes and tags of the run that is shown, as a person types them."""

from pathlib import Path
from typing import Any

import param

from hetplanner.errors import InvalidInput
from hetplanner.runs.annotations import Annotations, known_annotations, tags_of, write_annotations
from hetplanner.ui.shell.models.session import Session


class AnnotationsModel(param.Parameterized):
    """`save` writes them into the run's folder."""

    name_text = param.String(default="")
    tags_text = param.String(default="", doc="Parted by commas.")
    notes = param.String(default="")
    words = param.String(default="", doc="What became of the last press.")
    refusal = param.String(default="", doc="Why nothing was saved.")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self._session = session
        self._folder: Path | None = None

    def open(self, folder: Path | None) -> None:
        """Another run."""
        self._folder = folder
        said = known_annotations(folder) if folder is not None else Annotations()
        self.param.update(name_text=said.name, tags_text=", ".join(said.tags), notes=said.notes, words="", refusal="")

    def save(self) -> bool:
        """Writes all three, or none; returns whether."""
        if self._folder is None:
            return False
        if not self._session.unlocked:
            self.param.update(words="", refusal="type the launch token first; it is printed in the server's terminal")
            return False
        try:
            changes = {"name": self.name_text.strip(), "notes": self.notes, "tags": tags_of(self.tags_text)}
            write_annotations(self._folder, Annotations().replace(**changes))
        except InvalidInput as error:
            self.param.update(words="", refusal=str(error).removeprefix("annotations: "))
            return False
        self.param.update(words="Saved with the run.", refusal="")
        return True
