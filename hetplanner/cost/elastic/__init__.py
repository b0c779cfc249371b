"""Elastic plans by the cost model: a steady-state step, speeds, loads."""
