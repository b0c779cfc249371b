"""What `panel serve --setup` runs in the server of a test: changes that are not held are reported, see `report_unheld`.

A page is made on its first visit. Making the four hidden pages of each visit as well, as `hetplanner dashboard` does in
its tests, takes the browser and the server as long as the rest of a short story.
"""

from hetplanner.ui.shell.views import shell
from tests.support.pages import report_unheld  # noqa: F401

shell.BEATS_PER_FILL = 1_000_000
