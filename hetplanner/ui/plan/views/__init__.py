"""Views of the Plan page. Begin with `plan`."""
