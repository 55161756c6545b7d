"""Tensors without values: the examples that graphs are traced and compiled with."""
import contextlib

import torch
from torch._guards import detect_fake_mode


def hint(size):
    """The number that a size has in the example."""
    return size if isinstance(size, int) else size.node.hint


def contiguous(value):
    with detect_fake_mode([value]) or contextlib.nullcontext():
        return value.is_contiguous()


def contiguous_like(value):
    with detect_fake_mode([value]), torch.no_grad():
        return torch.empty(value.shape, dtype=value.dtype)


def fresh(like, dtype=None, requires_grad=False, strides=None):
    """A leaf of this shape and, unless `strides` are given, these strides."""
    with detect_fake_mode([like]), torch.no_grad():
        new = torch.empty_strided(like.shape, like.stride() if strides is None else strides, dtype=dtype or like.dtype)
        return new.requires_grad_(bool(requires_grad))


def dense(value):
    """What is like `value` but has no gaps, its dimensions in the same order in memory. Inductor decides about gaps of an activation by itself, and
    backward is compiled for one layout: the reader makes this one of what forward returns."""
    strides = [hint(s) for s in value.stride()]
    order, step, wanted = sorted(range(value.dim()), key=lambda d: -strides[d]), 1, [1] * value.dim()
    for d in reversed(order):
        wanted[d] = step
        step = step * value.shape[d]
    return value if [hint(s) for s in wanted] == strides else fresh(value, strides=wanted)
