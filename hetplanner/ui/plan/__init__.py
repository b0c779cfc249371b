"""The Plan page: the search, its plan, and why it is good."""
