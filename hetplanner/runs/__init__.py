"""Runs: their folders, the agent that owns their processes, readers of what they write, and reports.

`agent` starts, watches and ends; `reading` follows files that grow; `reports` explains. Begin with `run`.
"""
