"""Clusters in and out: cluster files, tables, graphs, what tools print. Begin with `cluster_files`."""
