"""PyTorch's side of the ddp.mlp rows: 8 x Linear(1024) with ReLU between, AdamW(fused), DDP on Gloo, fp32, one thread a rank.

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/ddp_mlp.py --batch 16 --bucket-mb 25

then on standard input `block 15`, `weights FILE`, `quit`; see bench/README.md.
"""
import argparse
import time

import torch
import torch.nn.functional as functional
from torch.nn.parallel import DistributedDataParallel

import blocks

WIDTH, LAYERS, BATCHES = 1024, 8, 4


def make_model():
    layers = []
    for i in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH)] + ([torch.nn.ReLU()] if i + 1 < LAYERS else [])
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for stream, parameter in enumerate(model.parameters()):
            parameter.copy_(blocks.values(stream, parameter.numel(), 1 / 32).view_as(parameter))
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True, help="samples per rank")
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--set-to-none", action="store_true", help="drop the gradients between steps instead of zeroing them")
    options = parser.parse_args()
    rank, _ = blocks.start()

    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True, bucket_cap_mb=options.bucket_mb,
                                    static_graph=options.static_graph, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    shape = (options.batch, WIDTH)
    inputs = [blocks.values(1000 + 100 * rank + k, shape[0] * WIDTH, 1).view(shape) for k in range(BATCHES)]
    targets = [blocks.values(2000 + 100 * rank + k, shape[0] * WIDTH, 1).view(shape) for k in range(BATCHES)]
    steps = 0

    def block(count):
        nonlocal steps
        times = []
        for _ in range(int(count)):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=options.set_to_none)
            functional.mse_loss(model(inputs[steps % BATCHES]), targets[steps % BATCHES]).backward()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1e3)
            steps += 1
        return "step_ms " + " ".join(f"{t:.4f}" for t in times)

    def weights(path):
        if rank == 0:
            blocks.write_raw(path, model.parameters())
        return "weights " + path

    blocks.serve(rank, {"block": block, "weights": weights})


if __name__ == "__main__":
    main()
