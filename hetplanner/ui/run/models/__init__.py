"""View-models of the Run page. Begin with `run` and `launch`."""
