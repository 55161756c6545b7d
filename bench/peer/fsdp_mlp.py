"""PyTorch's side of the fsdp.mlp rows: the job of ddp_mlp.py with fully_shard (FSDP2) around each layer, on Gloo, AdamW(fused).

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/fsdp_mlp.py --batch 16

then on standard input `block 15`, `weights FILE`, `quit`; see bench/README.md.
"""
import argparse
import time

import torch
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import blocks
import ddp_mlp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True, help="samples per rank")
    parser.add_argument("--keep", action="store_true", help="keep a layer's parameters between forward and backward")
    options = parser.parse_args()
    rank, world_size = blocks.start()

    model = ddp_mlp.make_model()
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=not options.keep)
    fully_shard(model, mesh=mesh, reshard_after_forward=not options.keep)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    shape = (options.batch, ddp_mlp.WIDTH)
    numel = options.batch * ddp_mlp.WIDTH
    inputs = [blocks.values(1000 + 100 * rank + k, numel, 1).view(shape) for k in range(ddp_mlp.BATCHES)]
    targets = [blocks.values(2000 + 100 * rank + k, numel, 1).view(shape) for k in range(ddp_mlp.BATCHES)]
    steps = 0

    def block(count):
        nonlocal steps
        times = []
        for _ in range(int(count)):
            begin = time.perf_counter()
            optimizer.zero_grad()
            functional.mse_loss(model(inputs[steps % ddp_mlp.BATCHES]), targets[steps % ddp_mlp.BATCHES]).backward()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1e3)
            steps += 1
        return "step_ms " + " ".join(f"{t:.4f}" for t in times)

    def weights(path):
        whole = [parameter.full_tensor() for parameter in model.parameters()]
        if rank == 0:
            blocks.write_raw(path, whole)
        return "weights " + path

    blocks.serve(rank, {"block": block, "weights": weights})


if __name__ == "__main__":
    main()
