"""View-models of the Cluster page. Begin with `cluster` and `editor`."""
