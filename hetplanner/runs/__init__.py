"""Runs: their directories, a reader of directories that grow, and the agent that owns their processes."""
