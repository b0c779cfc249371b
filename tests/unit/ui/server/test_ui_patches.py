"""What is changed in Bokeh and Panel is listed, and can be left away."""

from pathlib import Path

import bokeh
import panel
import pytest

from hetplanner.errors import InvalidInput
from hetplanner.ui.patches.patches import PATCHES, applied_patches, patch_scripts


def test_all_are_applied_where_nothing_is_said():
    assert applied_patches({}) == tuple(PATCHES)
    scripts = patch_scripts({})
    assert [*scripts, "island"] == list(PATCHES)
    assert all(script.startswith("data:text/javascript,") and len(script) > 300 for script in scripts.values())


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("none", ()),
        ("", ()),
        ("style_updates", ("style_updates",)),
        ("mounted_state, island", ("mounted_state", "island")),
    ],
)
def test_those_that_are_named_are_applied(value, names):
    assert applied_patches({"HETPLANNER_PATCHES": value}) == names
    assert list(patch_scripts({"HETPLANNER_PATCHES": value})) == [name for name in names if name != "island"]


def test_an_unknown_name_is_refused():
    with pytest.raises(
        InvalidInput, match="HETPLANNER_PATCHES: there is no patch 'style_update'; there are style_updates, "
    ):
        applied_patches({"HETPLANNER_PATCHES": "style_update"})


def test_the_documentation_lists_them(pytestconfig):
    text = (pytestconfig.rootpath / "docs" / "reference" / "patches.md").read_text(encoding="utf-8")
    for name, patch in PATCHES.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert patch.what in row
        assert patch.versions in row
        assert patch.upstream in row


BOKEH = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.js"
PANEL = Path(panel.__file__).parent
REPLACED = [
    ("style_updates", BOKEH, 'if (css_color != "") { return css_color; } return this.line_color.get_value();'),
    (
        "style_updates",
        BOKEH,
        "after_resize() { this._resized = true; if (this.update_bbox()) {",
    ),
    (
        "style_updates",
        BOKEH,
        "find_one_by_id(id) { for (const view of this.find_by_id(id)) { return view; }",
    ),
    ("style_updates", BOKEH, "this._applied_stylesheets.forEach((stylesheet) => stylesheet.uninstall());"),
    ("mounted_state", PANEL / "models" / "react_component.ts", "setValue(targetModel.attributes[resolvedProp])"),
    ("mounted_state", PANEL / "models" / "react_component.ts", "react_proxy.on(prop, cb, true)"),
    ("colour_bar", BOKEH, "self.layout.dirty = true; self.parent.request_layout();"),
    ("island", PANEL / "reactive.py", "for m in props.select({'type': DataModel}): if ref_str not in m.tags:"),
]
"""What a patch replaces or goes around, as it stands in the library, with single blanks."""


@pytest.mark.parametrize(("name", "file", "source"), REPLACED)
def test_the_library_is_as_the_patch_knows_it(name, file, source):
    """If this fails, the library has changed: look whether the patch is still right, or can go."""
    assert name in PATCHES
    assert source in " ".join(file.read_text(encoding="utf-8").split())
