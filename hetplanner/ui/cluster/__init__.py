"""The Cluster page: draw or import a cluster, edit its links, measure its hosts."""
