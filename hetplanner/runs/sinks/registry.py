"""Sinks by name."""

from collections.abc import Sequence
from importlib.util import find_spec

from hetplanner.errors import InvalidInput
from hetplanner.runs.sinks.interface import Sink
from hetplanner.runs.sinks.mlflow import MlflowSink
from hetplanner.runs.sinks.prometheus import PrometheusSink
from hetplanner.runs.sinks.tensorboard import TensorBoardSink
from hetplanner.runs.sinks.wandb import WandbSink

SINKS: dict[str, type[Sink]] = {
    "mlflow": MlflowSink,
    "prometheus": PrometheusSink,
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
}


def check_sinks(names: Sequence[str]) -> tuple[str, ...]:
    """The sinks behind `--sink NAME`, each once; imports none of their libraries.

    Raises:
        InvalidInput: an unknown name, a package that is not installed, or what a sink itself refuses.
    """
    for name in names:
        if name not in SINKS:
            raise InvalidInput(f"sink: must be one of {', '.join(sorted(SINKS))}, got {name!r:.60}")
        missing = [module for module in SINKS[name].modules if find_spec(module) is None]
        if missing:
            raise InvalidInput(
                f"sink {name}: package {missing[0]} is not installed; run: pip install 'hetplanner[{name}]'"
            )
        SINKS[name].check()
    return tuple(dict.fromkeys(names))
