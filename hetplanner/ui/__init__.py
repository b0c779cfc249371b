"""The dashboard: view-models (param, no Panel), thin Panel views, the access guard, the search worker.

Importing this package imports nothing else: the search worker lives in it and must start fast.
"""
