"""How Sphinx builds the site: `sphinx-build -W docs docs/_build/html`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generate

generate.everything()

project = "hetplanner"
copyright = "the authors of hetplanner"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "hetplanner"
html_extra_path = ["generated/extra"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # they are stored with their outputs
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_inherit_docstrings = False
default_role = "code"  # docstrings name code in single backticks
suppress_warnings = ["mystnb.unknown_mime_type"]  # live figures have pictures beside them
