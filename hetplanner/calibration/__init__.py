"""Calibration: what measured steps say about devices, links and transfers, and the published runs it is held against."""
