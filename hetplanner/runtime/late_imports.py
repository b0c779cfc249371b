"""What torch and numpy import at their first use. Loaded before processes are forked, it is loaded once for all."""

from collections.abc import Iterable

from hetplanner.workload.workload import Workload


def late_imports(workload: Workload, recompute: Iterable[bool]) -> tuple[str, ...]:
    """Modules that training a workload imports late.

    Args:
        workload: what is trained.
        recompute: by stage, whether it recomputes.
    """
    # The first backward imports the former, numpy the latter when it is first used.
    always = ("torch.fx.experimental.symbolic_shapes", "numpy.ma")
    # Layers are recomputed by torch.utils.checkpoint, which imports this. Captured models recompute whole stages.
    by_layer = workload.program is None and (workload.recompute or any(recompute))
    return (*always, "torch._dynamo") if by_layer else always
