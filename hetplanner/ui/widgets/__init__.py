"""Components that several pages use, and their bindings to view-models."""
