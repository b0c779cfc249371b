"""Views of the Cluster page. Begin with `cluster`."""
