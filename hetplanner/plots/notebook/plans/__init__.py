"""Notebook plots of clusters, searches and plans."""
