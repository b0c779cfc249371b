"""Weights of Hugging Face's model folders, as data: files' headers, what the folder must hold for a workload, and the
names that transformers gives to the weights of our formulas. Imports no torch: tensors are read and written by
`hetplanner.runtime.model`. Begin at `check.py`.
"""
