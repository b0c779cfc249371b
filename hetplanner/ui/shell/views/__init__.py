"""The page around the pages. Begin with `shell`."""
