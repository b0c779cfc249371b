"""Profiles that other tools publish, one file a format; begin with `registry`. To add one: see `interface`."""
