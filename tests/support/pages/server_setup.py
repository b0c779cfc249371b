"""What `panel serve --setup` runs in the server of a test: changes that are not held are reported, see `report_unheld`.

A page is made on its first visit. Making the four hidden pages as well takes the browser and the server as long as the
rest of a short story. `report_state` and the tests of `hetplanner dashboard` let them be made, as for users.
"""

from hetplanner.ui.shell.views import shell
from tests.support.pages import report_unheld  # noqa: F401

shell.BEATS_PER_FILL = 1_000_000
