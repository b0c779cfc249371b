"""Calibration: what measured steps say about devices, links and transfers, and published runs to hold it against."""
