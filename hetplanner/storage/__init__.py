"""Copies of checkpoints at an address of `fsspec`: S3 and others, without torch. Begin with `address`.

It may import what `hetplanner.cost` may.
"""
