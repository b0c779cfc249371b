"""View-models of the Plan page. Begin with `plan`."""
