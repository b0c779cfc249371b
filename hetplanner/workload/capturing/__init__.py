"""Models of transformers or of a user's code become workloads, in a process of their own; captures that are kept.

Begin with `capture`; `samples` changes the micro-batch of a program. It may import what `hetplanner.workload` may; the
process that captures is `hetplanner.capture`.
"""
