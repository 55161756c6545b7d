#!/usr/bin/env python3
"""Writes loss_scaler.txt: what torch.amp.GradScaler does with steps whose gradients overflow or not. One value list per line: name, then
the bits of each number in hexadecimal (8 digits f32, 16 digits f64).

    python tests/golden/make_loss_scaler_golden.py > tests/golden/loss_scaler.txt        (torch 2.11.0, CPU)
"""
import struct

import torch

torch.set_num_threads(1)


def emit(name, values):
    if isinstance(values, torch.Tensor):
        print(name, *(struct.pack(">f", v).hex() for v in values.detach().flatten().tolist()))
    else:
        print(name, *(struct.pack(">d", v).hex() for v in values))


def scales(name, overflowed, **options):
    """The scale and the growth tracker after each step; overflowed[i] says whether step i has an infinite gradient."""
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    after, trackers = [], []
    for bad in overflowed:
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        weight.grad[1] = float("inf") if bad else 1.0
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        after.append(state["scale"])
        trackers.append(float(state["_growth_tracker"]))
    emit(f"scaler.{name}.overflowed", [float(b) for b in overflowed])
    emit(f"scaler.{name}.scale", after)
    emit(f"scaler.{name}.tracker", trackers)


mixed = [(i * 7) % 11 in (0, 1) or i in (20, 21, 22) for i in range(40)]
scales("defaults", [True, False] * 12 + [False] * 2010)
scales("uneven", mixed, init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=3)
scales("top", [False] * 30, init_scale=1e38, growth_factor=2.0, backoff_factor=0.5, growth_interval=1)


def pattern(numel, salt):
    return torch.tensor([((i * 37 + salt * 11) % 101 - 50) / 64 for i in range(numel)], dtype=torch.float32)


def training():
    """A linear model under GradScaler, clipped, steps 3 and 7 with an infinite input on purpose."""
    weight = torch.nn.Parameter(pattern(12, 1).reshape(3, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=2)
    norms, scale = [], []
    for step in range(10):
        x = pattern(8, step + 2).reshape(2, 4)
        y = x @ weight.t()
        # Finite in the loss, infinite in the gradient.
        loss = (y.clamp(-1, 1) * (1e38 if step in (3, 7) else 1.0)).mean() if step in (3, 7) else y.square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_([weight], 0.5)
        scaler.step(optimizer)
        scaler.update()
        norms.append(float(norm))
        scale.append(scaler.get_scale())
    emit("training.weight", weight)
    emit("training.norms", norms)
    emit("training.scale", scale)


training()
