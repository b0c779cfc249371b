"""What is changed in Bokeh and Panel is listed, and can be left away."""

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
    assert all(f"`{name}`" in text for name in PATCHES)
