"""View-models: state and verbs of each page, as `param` objects without Panel; tested as Python objects."""
