"""A drawn job's data, model and optimizer with Python's PyTorch, from the formulas of job.hpp, net.hpp, samples.hpp and docs/numbers.md."""

import math

import torch
from torch import nn
from torch.nn import functional as F

EPS, CHANGE_STEP, STEPS = 1e-3, 3, 8
CLASSES, WORDS, LENGTH, WIDTH = 3, 12, 4, 12
WORD = (1 << 64) - 1


def dtype_of(job):
    return getattr(torch, job.dtype)


def input_of(job, i):
    if job.model == "tokens":
        return torch.tensor([(i * 5 + t * t * 3 + i * t) % WORDS for t in range(LENGTH)])
    size = 16 if job.model == "conv" else WIDTH
    values = torch.tensor([math.sin(0.9 * i + 1.3 * j * (1 + i % 3)) for j in range(size)], dtype=torch.float64).to(dtype_of(job))
    return values.view(1, 4, 4) if job.model == "conv" else values


def target_of(job, i):
    masked = job.loss == "masked"
    if job.model == "tokens":
        return torch.tensor([-100 if masked and (i % 4 == 0 or (i + t) % 3 == 0) else (i + 2 * t) % WORDS for t in range(LENGTH)])
    return torch.tensor(-100 if masked and i % 5 < 2 else (i * i + i // 2) % CLASSES)


def samples_at(job, indices):
    return torch.stack([input_of(job, i) for i in indices]), torch.stack([target_of(job, i) for i in indices])


def uneven_batches(job, rank):
    """Of a rank with unequal data: batches of 2 to 4 samples, one fewer with each rank."""
    following, batches = 1000 * (rank + 1), []
    for b in range(STEPS - rank):
        rows = 2 + (b + rank) % 3
        batches.append(list(range(following, following + rows)))
        following += rows
    return batches


# ---------------------------------------------------------------- the model

class Place:
    """Where in the run a forward is; `parts`: (rank, its first sample, rows) of the batch."""

    def __init__(self, step, micro_batch, parts):
        self.step, self.micro_batch, self.parts = step, micro_batch, parts


def philox(counter, key):
    """Philox4x32-10."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        of_a, of_c = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (of_c >> 32) ^ b ^ k, of_c & 0xFFFFFFFF, (of_a >> 32) ^ d ^ m, of_a & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def key_of(seed, *numbers):
    """SplitMix64's finaliser over the numbers in turn."""
    key = 0
    for number in (seed, *numbers):
        key = (key + 0x9E3779B97F4A7C15 + number) & WORD
        key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        key = (key ^ (key >> 27)) * 0x94D049BB133111EB & WORD
        key ^= key >> 31
    return key


class Dropout(nn.Module):
    """Drops where docs/numbers.md says. `place` and `calls` are set before each forward of the model."""

    def __init__(self, probability, seed):
        super().__init__()
        self.probability, self.seed, self.layer, self.calls, self.place = probability, seed, 0, 0, None

    def forward(self, x):
        if not self.training:
            return x
        kept = [self.mask(rows * x[0].numel(), key_of(self.seed, self.place.step, self.place.micro_batch, rank)) for rank, _, rows in self.place.parts]
        self.calls += 1
        return x * torch.cat(kept).view(x.shape).to(x.dtype) / (1 - self.probability)

    def mask(self, count, key):
        numbers = []
        for i in range((count + 3) // 4):
            numbers += philox((i & 0xFFFFFFFF, i >> 32, self.calls, self.layer), (key & 0xFFFFFFFF, key >> 32))
        return torch.tensor(numbers[:count]) >= round(self.probability * 2**32)


class Cell(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.norm = {"none": lambda width: None, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[job.norm](WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH) if job.model == "tokens" else None
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = Dropout(job.dropout, job.seed) if job.dropout > 0 else nn.Identity()

    def forward(self, x):
        y = x
        if self.norm is not None:
            y = self.norm(y.reshape(-1, WIDTH)).view_as(x)
        if self.qkv is not None:
            q, k, v = self.qkv(y).chunk(3, -1)
            y = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH)).softmax(-1) @ v
        return x + self.dropout(torch.tanh(self.linear(y)))


class Net(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.job = job
        if job.model == "tokens":
            self.words = nn.Embedding(WORDS, WIDTH, padding_idx=job.padding_idx if job.padding_idx >= 0 else None)
        elif job.model == "conv":
            self.conv = nn.Conv2d(1, WIDTH, 3)
        else:
            self.add_module("in", nn.Linear(WIDTH, WIDTH))
        self.cells = [Cell(job) for _ in range(job.cells)]
        for c, cell in enumerate(self.cells):
            self.add_module(f"cell{c}", cell)
        if job.tie == "module_twice":
            self.cell_again = self.cells[0]
        if job.tie == "two_names":
            self.again = self.cells[0].linear.weight
        if job.unused != "none":
            self.side = nn.Linear(WIDTH, WIDTH)
        odd = {"none": None, "scalar": torch.ones(()), "empty": torch.ones(0), "strided": torch.ones(WIDTH, WIDTH).t(), "bfloat16": torch.ones(WIDTH)}[job.odd]
        if odd is not None:
            self.odd = nn.Parameter(odd)
        if job.tie != "output":
            self.head = nn.Linear(WIDTH, WORDS if job.model == "tokens" else CLASSES)
        self.to(dtype_of(job))
        if job.odd == "bfloat16":
            self.odd.data = self.odd.data.bfloat16()
        self.fill()
        self.dropouts = [module for module in self.modules() if isinstance(module, Dropout)]
        for number, dropout in enumerate(self.dropouts):
            dropout.layer = number

    @torch.no_grad()
    def fill(self):
        """First values, a function of a parameter's name and of the place in it."""
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if name == "again" or name.startswith("cell_again."):
                continue
            key = 0.0
            for c in name:
                key = math.fmod(key * 1.7 + ord(c), 89)
            values = 0.6 * torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * 1.9 + key)
            if name.endswith("norm.weight") or name == "odd":
                values = 1 + 0.2 * values
            parameter.copy_(values.view(parameter.shape))

    def forward(self, x, place):
        job = self.job
        for dropout in self.dropouts:
            dropout.place, dropout.calls = place, 0
        if job.model == "tokens":
            x = self.words(x)
        elif job.model == "conv":
            x = torch.tanh(self.conv(x)).mean((2, 3))
        else:
            x = torch.tanh(self.get_submodule("in")(x))
        for cell in self.cells:
            x = cell(x)
        if job.tie == "module_twice":
            x = self.cell_again(x)
        if job.tie == "two_names":
            x = torch.tanh(x @ self.again)
        used = [self.uses_side(place, part) for part in place.parts]
        if any(used):
            rows = torch.cat([torch.full((part[2],), float(on), dtype=x.dtype) for part, on in zip(place.parts, used)])
            x = x + torch.tanh(self.side(x)) * rows.view(-1, *[1] * (x.dim() - 1))
        if job.odd == "empty":
            x = x + self.odd.sum()
        elif job.odd == "strided":
            x = x + torch.tanh(x @ self.odd)
        elif job.odd != "none":
            x = x * self.odd.to(x.dtype)
        return F.linear(x, self.words.weight) if job.tie == "output" else self.head(x)

    def uses_side(self, place, part):
        return {"none": False, "always": False, "step": place.step % 2 == 1, "micro_batch": place.micro_batch == 0, "rank": part[0] == 0,
                "data": part[1] % 2 == 0}[self.job.unused]

    def freeze(self, step):
        frozen = {"none": False, "always": True, "later": step >= CHANGE_STEP}.get(self.job.frozen, step < CHANGE_STEP)
        for name, parameter in self.named_parameters():
            if name.startswith("cell0.linear.") or name == "again":
                parameter.requires_grad_(not frozen)


# ---------------------------------------------------------------- the optimizer

def rate_of(job):
    return 0.05 if job.dtype == "float64" and job.optimizer != "torch.RMSprop" else 0.005


def is_undecayed(job, name):
    return "norm." in name if job.no_decay == "norms" else job.no_decay == "*.bias" and name.endswith(".bias")


def optimizer_of(job, net):
    momentum, other = job.rule == "momentum", job.rule == "other"
    kind, options = {
        "sgd": (torch.optim.SGD, {"momentum": 0.9 if momentum or other else 0, "nesterov": other}),
        "adam": (torch.optim.Adam, {"eps": EPS, "amsgrad": other}),
        "adamw": (torch.optim.AdamW, {"eps": EPS, "amsgrad": other and job.optimizer != "adamw"}),
        "rmsprop": (torch.optim.RMSprop, {"eps": EPS, "momentum": 0.9 if momentum else 0, "centered": other}),
        "adagrad": (torch.optim.Adagrad, {"eps": EPS, "lr_decay": 0.1 if other else 0}),
    }[job.optimizer.removeprefix("torch.").lower()]
    rate, of_groups = rate_of(job), ([], [])
    for name, parameter in net.named_parameters():
        second = name.startswith("cell") or name == "side.weight" if job.groups != "one" else is_undecayed(job, name)
        of_groups[second].append(parameter)
    groups = [{"params": of_groups[0], "lr": 0 if job.groups == "zero" else rate, "weight_decay": job.weight_decay}]
    if job.no_decay:
        groups.append({"params": of_groups[1], "lr": rate, "weight_decay": 0})
    if job.groups != "one":
        groups.append({"params": of_groups[1], "lr": rate / 2 if job.groups == "rates" else rate,
                       "weight_decay": 0 if job.groups == "decay" else job.weight_decay})
    return kind(groups, lr=rate, **options)
