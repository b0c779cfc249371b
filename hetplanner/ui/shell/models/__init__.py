"""A browser session as data. Begin with `app`."""
