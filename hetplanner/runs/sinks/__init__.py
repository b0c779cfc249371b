"""Sinks: a run's curves in other programs, such as TensorBoard, sent by a process of their own.

No rank and no page waits for a sink. Libraries of sinks are imported when a sink is opened. Begin with `interface`.
"""
