"""Parts of a page that are laid out by themselves.

A change of size, style or visibility anywhere makes Bokeh lay out everything from the root, a fifth of a second with
all pages. It stops at a custom component whose parent is one too.
"""

from typing import Any, ClassVar

from bokeh.model import Model
from panel.custom import Children, JSComponent

from hetplanner.ui.patches.patches import applied_patches

_APPLIED = applied_patches()


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

    @classmethod
    def _patch_datamodel_ref(cls, props: Model, ref: str) -> None:
        """Its parts have marked themselves: Panel looks for all that is below, at every level of the page."""
        if "island" not in _APPLIED:
            super()._patch_datamodel_ref(props, ref)
            return
        mark = f"__ref:{ref}"
        if mark not in props.tags:
            props.tags.append(mark)
