"""No test asserts wall time, generated ones included: a shared machine may stand still for seconds."""

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
