"""Measured seconds of a model's layers, by kind of device, micro-batch and tensor-parallel degree.

The cost model prefers them over the calibrated or catalog rates of the devices. `hetplanner profile` measures one, or
reads what another tool measured: `imports` has a file for each of those formats.
"""
