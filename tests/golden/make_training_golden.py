#!/usr/bin/env python3
"""Writes training.txt: what PyTorch's optimizers, schedulers, clip_grad_norm_, cross_entropy and autocast give for inputs that the tests
compute by the same formula. One value list per line: name, then the bits of each number in hexadecimal (8 digits f32, 16 digits f64).

    python tests/golden/make_training_golden.py > tests/golden/training.txt        (torch 2.11.0, CPU)
"""
import struct
import sys

import torch

torch.set_num_threads(1)


def pattern(numel, salt):
    """Multiples of 1/64 in about [-0.8, 0.8]: exact in f32, so that C++ and Python start from the same bits."""
    return torch.tensor([((i * 37 + salt * 11) % 101 - 50) / 64 for i in range(numel)], dtype=torch.float32)


def emit(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach().to(torch.float32).flatten().tolist()
        print(name, *(struct.pack(">f", v).hex() for v in values))
    else:
        print(name, *(struct.pack(">d", v).hex() for v in values))


def optimizer(name, make, fields, steps=6):
    # c has no gradient in steps 0 and 3. A group of its own: PyTorch's fused SGD takes one first step for a whole group.
    shapes = {"a": (3, 5), "b": (70,), "c": (4,)}
    parameters = {n: torch.nn.Parameter(pattern(int(torch.tensor(s).prod()), i).reshape(s)) for i, (n, s) in enumerate(shapes.items())}
    opt = make([{"params": [parameters["a"], parameters["b"]]}, {"params": [parameters["c"]]}])
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 0.1 / (step + 1)
        for i, (n, p) in enumerate(parameters.items()):
            p.grad = None if n == "c" and step in (0, 3) else pattern(p.numel(), 7 * step + i + 1).reshape(p.shape)
        opt.step()
    for n, p in parameters.items():
        emit(f"{name}.{n}", p)
        for field in fields:
            emit(f"{name}.{n}.{field}", opt.state[p][field])


S = torch.optim.SGD
W = torch.optim.AdamW
optimizer("sgd_momentum", lambda g: S(g, lr=1, momentum=0.9, weight_decay=1e-4, fused=True), ["momentum_buffer"])
optimizer("sgd_nesterov", lambda g: S(g, lr=1, momentum=0.9, nesterov=True, weight_decay=1e-2, fused=True), ["momentum_buffer"])
optimizer("sgd_plain", lambda g: S(g, lr=1, weight_decay=1e-2, fused=True), [])
optimizer("adamw", lambda g: W(g, lr=1, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-2, fused=True), ["exp_avg", "exp_avg_sq", "step"])


def schedule(name, make, steps):
    p = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([p], lr=0.1)
    scheduler = make(opt)
    rates = []
    for _ in range(steps):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    emit(name, rates)


L = torch.optim.lr_scheduler
schedule("schedule.cosine", lambda o: L.CosineAnnealingLR(o, T_max=20, eta_min=0.001), 21)
schedule("schedule.warmup_cosine", lambda o: L.SequentialLR(
    o, [L.LinearLR(o, start_factor=1 / 6, total_iters=5), L.CosineAnnealingLR(o, T_max=15, eta_min=0.001)], milestones=[5]), 20)
schedule("schedule.step", lambda o: L.StepLR(o, step_size=3, gamma=0.1), 12)
schedule("schedule.warmup", lambda o: L.LinearLR(o, start_factor=1 / 6, total_iters=5), 10)

gradients = [torch.nn.Parameter(torch.zeros(n)) for n in (15, 70, 4)]
for i, g in enumerate(gradients):
    g.grad = pattern(g.numel(), i + 3)
emit("clip.norm", [float(torch.nn.utils.clip_grad_norm_(gradients, 1.5))])
for i, g in enumerate(gradients):
    emit(f"clip.{i}", g.grad)

scores = pattern(8 * 10, 2).reshape(8, 10).requires_grad_()
target = torch.tensor([0, 3, 9, 1, 1, 7, 4, 5])
loss = torch.nn.functional.cross_entropy(scores, target, label_smoothing=0.1)
loss.backward()
emit("label_smoothing.loss", loss)
emit("label_smoothing.grad", scores.grad)

linear = torch.nn.Linear(24, 10)
with torch.no_grad():
    linear.weight.copy_(pattern(240, 5).reshape(10, 24))
    linear.bias.copy_(pattern(10, 6))
with torch.autocast("cpu", dtype=torch.bfloat16):
    hidden = linear(pattern(8 * 24, 4).reshape(8, 24))
    assert hidden.dtype == torch.bfloat16
    loss = torch.nn.functional.cross_entropy(hidden, target)
loss.backward()
emit("autocast.hidden", hidden)
emit("autocast.loss", loss)
emit("autocast.grad", linear.weight.grad)

print(f"# torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}", file=sys.stderr)
