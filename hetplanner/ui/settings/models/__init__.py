"""View-models of the side bar. Begin with `problem`."""
