"""Thin Panel views: widgets and figures of each page, bound to a view-model."""
