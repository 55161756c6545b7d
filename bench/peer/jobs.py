"""What PyTorch's programs of the rows train: the jobs of bench/README.md, and their commands."""
import pathlib
import threading
import time

import torch
import torch.nn.functional as functional
from torch import nn

import blocks

BATCHES = 4


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    """examples/gpt's model with learned positions and the embedding as output layer."""

    def __init__(self, vocabulary=256, length=256, layers=6, heads=8, width=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


class BasicBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.second, self.second_norm = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = None
        if stride != 1 or before != after:
            self.shortcut, self.shortcut_norm = nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)

    def forward(self, x):
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))))


class MiniResNet(nn.Module):
    """examples/image_classifier's model."""

    def __init__(self, channels=3, classes=10, width=64):
        super().__init__()
        # In the order of our parameters.
        self.stem, self.stem_norm = nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.head = nn.Linear(4 * width, classes)
        self.blocks = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2),
                                    BasicBlock(2 * width, 2 * width, 1), BasicBlock(2 * width, 4 * width, 2),
                                    BasicBlock(4 * width, 4 * width, 1))

    def forward(self, images):
        return self.head(self.blocks(functional.relu(self.stem_norm(self.stem(images)))).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.second, self.second_norm = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.third, self.third_norm = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = None
        if stride != 1 or before != 4 * width:
            self.shortcut, self.shortcut_norm = nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)

    def forward(self, x):
        y = functional.relu(self.first_norm(self.first(x)))
        y = functional.relu(self.second_norm(self.second(y)))
        y = self.third_norm(self.third(y))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))))


class BottleneckResNet(nn.Module):
    """bench/bottleneck_resnet's model."""

    def __init__(self, depths, width, classes):
        super().__init__()
        # In the order of our parameters.
        self.stem, self.stem_norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.head = nn.Linear(32 * width, classes)
        parts, before = [], width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                parts.append(Bottleneck(before, width << stage, 2 if stage > 0 and block == 0 else 1))
                before = 4 * width << stage
        self.blocks = nn.Sequential(*parts)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.stem_norm(self.stem(images))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Mlp:
    WIDTH = 1024

    def __init__(self, rank, batch, layers=8):
        parts = []
        for i in range(layers):
            parts += [nn.Linear(self.WIDTH, self.WIDTH)] + ([nn.ReLU()] if i + 1 < layers else [])
        self.model = nn.Sequential(*parts)
        set_values(self.model, biases=True)
        self.units = [layer for layer in self.model if isinstance(layer, nn.Linear)]
        self.inputs = [blocks.values(1000 + 100 * rank + k, batch * self.WIDTH, 1).view(batch, -1) for k in range(BATCHES)]
        self.targets = [blocks.values(2000 + 100 * rank + k, batch * self.WIDTH, 1).view(batch, -1) for k in range(BATCHES)]

    loss = staticmethod(functional.mse_loss)


class GptJob:
    def __init__(self, rank, batch, layers=6, heads=8, width=512, tokens=256, vocabulary=256):
        self.model = Gpt(vocabulary, tokens, layers, heads, width)
        set_values(self.model, biases=False)
        self.units = list(self.model.layers)
        self.inputs = [blocks.integers(1000 + 100 * rank + k, batch * tokens, vocabulary).view(batch, -1) for k in range(BATCHES)]
        self.targets = [blocks.integers(2000 + 100 * rank + k, batch * tokens, vocabulary).view(batch, -1) for k in range(BATCHES)]

    @staticmethod
    def loss(scores, targets):
        return functional.cross_entropy(scores.flatten(0, 1).to(torch.promote_types(scores.dtype, torch.float32)), targets.flatten())


class Images:
    def __init__(self, model, rank, batch, side=32, classes=10):
        self.model = model
        set_values(self.model, biases=False)
        self.units = list(self.model.blocks)
        self.inputs = [blocks.values(1000 + 100 * rank + k, batch * 3 * side * side, 1).view(batch, 3, side, side) for k in range(BATCHES)]
        self.targets = [blocks.integers(2000 + 100 * rank + k, batch, classes) for k in range(BATCHES)]

    @staticmethod
    def loss(scores, targets):
        return functional.cross_entropy(scores.to(torch.promote_types(scores.dtype, torch.float32)), targets)


def channels_last(job):
    """As GPUs like pictures, on both sides."""
    job.model.to(memory_format=torch.channels_last)
    job.inputs = [images.contiguous(memory_format=torch.channels_last) for images in job.inputs]
    return job


JOBS = {
    "mlp": Mlp,
    "gpt": GptJob,
    "gpt124m": lambda rank, batch: GptJob(rank, batch, layers=12, heads=12, width=768, tokens=1024, vocabulary=50304),
    "gpt_tiny": lambda rank, batch: GptJob(rank, batch, layers=2, heads=4, width=64, tokens=32, vocabulary=97),
    "resnet": lambda rank, batch: Images(MiniResNet(), rank, batch),
    "resnet50": lambda rank, batch: channels_last(Images(BottleneckResNet((3, 4, 6, 3), 64, 1000), rank, batch, 224, 1000)),
    "resnet_tiny": lambda rank, batch: channels_last(Images(BottleneckResNet((1, 1, 1, 1), 8, 10), rank, batch, 64, 10)),
}


def set_values(model, biases):
    """Norms have weight 1 and bias 0, the other biases too where `biases` is false."""
    with torch.no_grad():
        for stream, (name, parameter) in enumerate(model.named_parameters()):
            if biases or parameter.dim() > 1:
                parameter.copy_(blocks.values(stream, parameter.numel(), 1 / 32).view_as(parameter))
            else:
                parameter.fill_(1 if name.endswith("weight") else 0)


def make_optimizer(name, parameters):
    if name.startswith("resnet"):
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, fused=True)
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)


class PeakPss(threading.Thread):
    """The most memory that this process had while it lived, pages shared with other processes counted in parts."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.003):
            for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    self.peak = max(self.peak, int(line.split()[1]))

    def stop(self):
        self.over.set()
        self.join()
        return self.peak / 1024


def compile_as(how, job, model):
    """The model to call: as it is, compiled whole, or with each of the job's units compiled."""
    if how == "whole":
        return torch.compile(model)
    if how == "blocks":
        for unit in job.units:
            unit.compile()
    return model


def serve(rank, job, model, optimizer, whole, set_to_none=True):
    """Trains as the lines on standard input say. `whole()`: all parameters, on every rank."""
    steps = 0

    def block(count):
        nonlocal steps
        times = []
        for _ in range(int(count)):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=set_to_none)
            job.loss(model(job.inputs[steps % BATCHES]), job.targets[steps % BATCHES]).backward()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1e3)
            steps += 1
        return "step_ms " + " ".join(f"{t:.4f}" for t in times)

    def memory(count):
        peak = PeakPss()
        block(count)
        peaks = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(peaks, peak.stop())
        return "peak_pss_mib " + " ".join(f"{p:.1f}" for p in peaks)

    def weights(path):
        tensors = whole()
        if rank == 0:
            blocks.write_raw(path, tensors)
        return "weights " + path

    blocks.serve(rank, {"block": block, "memory": memory, "weights": weights})
