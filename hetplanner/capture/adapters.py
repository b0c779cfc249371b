"""Adapters and frozen weights of a module before it is captured: PEFT puts the ones in, names choose the others."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

from torch import nn

from hetplanner.capture.export import Factory, Wrapper
from hetplanner.errors import InvalidInput
from hetplanner.schema import one_line
from hetplanner.workload.fine_tuning import Adapters


def wanted_adapters(text: str, model_type: str) -> Adapters:
    """Adapters from RANK[:ALPHA[:TARGET,...]]; without targets those that PEFT has for the architecture.

    Raises:
        InvalidInput: the text says something else, or PEFT has no targets for it.
    """
    peft = _peft()
    if text.count(":") < 2:
        usual = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(model_type)
        if usual is None:
            raise InvalidInput(f"adapters: PEFT knows no usual layers of {model_type}; name them: {text}::TARGET,...")
        text += ":" * (2 - text.count(":")) + ",".join(usual)
    return Adapters.parse(text, model_type)


def with_adapters(factory: Factory, adapters: Adapters, place: str) -> Factory:
    """A factory of the same model with adapters beside its linear layers; all else is frozen.

    Raises:
        InvalidInput: no PEFT, or it cannot put adapters there.
    """
    peft = _peft()

    def adapted() -> Any:
        module, *examples = factory()
        inner = module.inner if isinstance(module, Wrapper) else module
        wanted = peft.LoraConfig(
            r=adapters.rank, lora_alpha=adapters.alpha, target_modules=list(adapters.targets), lora_dropout=0.0
        )
        # PEFT moves what it makes to the layer's device; fake weights are there, and cannot be swapped for others.
        stays = mock.patch.object(nn.Module, "to", _itself)
        try:
            with stays:
                peft.inject_adapter_in_model(wanted, inner)
        except ValueError as error:
            raise InvalidInput(one_line(f"{place}: adapters: {str(error).splitlines()[0]:.300}")) from None
        return module, *examples

    return adapted


def with_frozen(factory: Factory, patterns: Sequence[str], place: str) -> Factory:
    """A factory of the same model of which parameters are frozen whose names match a pattern, such as model.embed*.

    Raises:
        InvalidInput: no parameter matches a pattern.
    """

    def frozen() -> Any:
        module, *examples = factory()
        inner: nn.Module = module.inner if isinstance(module, Wrapper) else module
        names = dict(inner.named_parameters())
        for pattern in patterns:
            found = [name for name in names if fnmatchcase(name, pattern)]
            if not found:
                raise InvalidInput(
                    one_line(
                        f"{place}: freeze: no parameter is called like {pattern!r:.80}; one is {next(iter(names))!r}"
                    )
                )
            for name in found:
                names[name].requires_grad_(False)
        return module, *examples

    return frozen


def _itself(module: nn.Module, *_: object, **__: object) -> nn.Module:
    return module


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise InvalidInput(
            "adapters: capturing a model with adapters needs peft: pip install 'hetplanner[adapters]'"
        ) from None
    return peft
