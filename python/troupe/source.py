"""SOURCE.py:FUNCTION, the user's description of a model: what the function returns, checked."""
import dataclasses
import importlib.util
import inspect
import pathlib
import sys
from typing import Any, Callable

import torch
import torch.nn.functional as F

from .refusal import Refusal


@dataclasses.dataclass
class Source:
    model: torch.nn.Module
    loss: Callable  # (model, batch) -> what loss_parts takes
    batch: Any  # what the user gave: a tuple (input, target), or a dict of tensors
    fields: dict  # name -> tensor, in the order of the batch

    def rebuild(self, tensors):
        """The user's batch from the tensors of its fields."""
        if isinstance(self.batch, dict):
            return dict(zip(self.fields, tensors))
        return tuple(tensors)


def cross_entropy(model, batch):
    """The loss where the function gives none: of a classifier whose batch is (input, target)."""
    inputs, target = batch if not isinstance(batch, dict) else (batch["input"], batch["target"])
    scores = model(inputs)
    return {"loss": F.cross_entropy(scores, target), "correct": (scores.argmax(1) == target).sum()}


def loss_parts(result, needs_gradient=True):
    """(value, count or None, correct or None) of what a loss returned."""
    count = correct = None
    if isinstance(result, dict):
        unknown = sorted(set(result) - {"loss", "sum", "count", "correct"})
        if unknown:
            raise Refusal(f"the loss returns {unknown[0]!r}; known: loss, or sum and count, and correct")
        if ("loss" in result) == ("sum" in result):
            raise Refusal("the loss returns a dict with neither or both of 'loss' and 'sum'; a mean is 'loss', a sum comes with 'count'")
        value, count, correct = result.get("loss", result.get("sum")), result.get("count"), result.get("correct")
        if ("sum" in result) != (count is not None):
            raise Refusal("the loss returns a dict with one of 'sum' and 'count'; give both, or 'loss'")
    elif isinstance(result, tuple):
        if len(result) != 2:
            raise Refusal(f"the loss returns {len(result)} values; known: a mean, a pair (sum, count), or a dict")
        value, count = result
    else:
        value = result
    for name, part in (("the loss", value), ("the count", count), ("correct", correct)):
        if part is None and name != "the loss":
            continue
        if not isinstance(part, torch.Tensor) or part.dim() != 0:
            raise Refusal(f"{name} is not a tensor with one number and no dimension; return a mean, a sum, or a count as tensors")
    if not value.is_floating_point():
        raise Refusal(f"the loss is of {value.dtype}; return a floating number")
    if needs_gradient and not value.requires_grad:
        raise Refusal("no parameter has an effect on the loss; does the loss call the model, outside of torch.no_grad?")
    return value, count, correct


def attribute(text):
    """What `SOURCE.py:NAME` names. Runs the file."""
    path, _, name = text.rpartition(":")
    if not path or not name:
        raise Refusal(f"'{text}' is not SOURCE.py:NAME")
    file = pathlib.Path(path)
    if not file.is_file():
        raise Refusal(f"there is no file {path}")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        there = [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__]
        raise Refusal(f"{path} has no {name}; its functions: {', '.join(there) or 'none'}")
    return getattr(module, name)


def read(text):
    """The Source that `SOURCE.py:FUNCTION` describes."""
    function = attribute(text)
    if not callable(function):
        raise Refusal(f"{text} is not a function; name one that returns (model, loss, batch)")
    return checked(function())


def checked(given):
    """The Source of (model, loss, batch) or (model, batch)."""
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not isinstance(given[0], torch.nn.Module):
        raise Refusal("the function does not return (model, loss, batch); model is a torch.nn.Module, loss may be left out, batch is an example: "
                      "a tuple (input, target) or a dict of tensors")
    model, batch = given[0], given[-1]
    loss = given[1] if len(given) == 3 and given[1] is not None else cross_entropy
    if isinstance(batch, dict):
        fields = dict(batch)
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        fields = dict(zip(("input", "target"), batch))
    else:
        raise Refusal("the example batch is neither a tuple (input, target) nor a dict of tensors")
    for name, tensor in fields.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise Refusal(f"the example batch has {name!r}, which is not a tensor")
        if tensor.dim() == 0 or tensor.shape[0] < 2:
            raise Refusal(f"the example batch's {name} has the shape {tuple(tensor.shape)}; give at least 2 samples along the first dimension")
        if tensor.device.type != "cpu":
            raise Refusal(f"the example batch's {name} is on {tensor.device}; a model is compiled for the CPU")
    sizes = {name: tensor.shape[0] for name, tensor in fields.items()}
    if len(set(sizes.values())) > 1:
        raise Refusal("the example batch's fields have different numbers of samples: " + ", ".join(f"{n} {s}" for n, s in sizes.items()))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise Refusal(f"{name} is on {tensor.device}; a model is compiled for the CPU")
        if tensor.is_complex() or tensor.is_sparse or tensor.is_quantized:
            raise Refusal(f"{name} is not a plain tensor of numbers ({tensor.dtype}, {tensor.layout})")
    synchronised = next((name for name, module in model.named_modules() if isinstance(module, torch.nn.SyncBatchNorm)), None)
    if synchronised is not None:
        raise Refusal(f"{synchronised or 'the model'} is a SyncBatchNorm, and a compiled model takes the statistics of one rank; use BatchNorm, or "
                      "GroupNorm")
    if not any(p.requires_grad for p in model.parameters()):
        raise Refusal("the model has no parameter that requires a gradient")
    # In training a batch has no gaps, whatever the example was cut out of. The order of dimensions stays: channels_last.
    fields = {name: tensor if torch.empty_like(tensor).stride() == tensor.stride() else tensor.contiguous() for name, tensor in fields.items()}
    return Source(model, loss, batch, fields)
