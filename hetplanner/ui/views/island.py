"""Parts of a page that are laid out by themselves.

A change of size, style or visibility anywhere makes Bokeh lay out everything from the root, a fifth of a second with
all pages. It stops at a custom component whose parent is one too.
"""

from typing import Any, ClassVar

from panel.custom import Children, JSComponent


class Island(JSComponent):
    """`parts` below each other."""

    parts = Children()

    _esm = """
    export function render({ model }) {
      const box = document.createElement("div")
      box.append(...model.get_child("parts"))
      return box
    }
    """
    _stylesheets: ClassVar[list[str]] = []

    def __init__(self, *parts: Any, **params: Any) -> None:
        super().__init__(parts=list(parts), sizing_mode="stretch_width", margin=0, **params)
