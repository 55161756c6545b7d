"""PyTorch's side of the fsdp rows: fully_shard (FSDP2) around each layer, on Gloo, AdamW(fused), fp32, one thread a rank.

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/fsdp.py --job mlp --batch 16

then on standard input `block 15`, `weights FILE`, `quit`; see bench/README.md.
"""
import argparse

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import blocks
import jobs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=jobs.JOBS, default="mlp")
    parser.add_argument("--batch", type=int, required=True, help="samples per rank")
    parser.add_argument("--keep", action="store_true", help="keep a layer's parameters between forward and backward")
    parser.add_argument("--compile", choices=["whole", "blocks"], help="by torch.compile: the model as FSDP2 has it, or each layer")
    options = parser.parse_args()
    rank, world_size = blocks.start()
    job = jobs.JOBS[options.job](rank, options.batch)
    mesh = init_device_mesh("cpu", (world_size,))
    for unit in [*job.units, job.model]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=not options.keep)
    optimizer = jobs.make_optimizer(options.job, job.model.parameters())
    jobs.serve(rank, job, jobs.compile_as(options.compile, job, job.model), optimizer, lambda: [parameter.full_tensor() for parameter in job.model.parameters()])


if __name__ == "__main__":
    main()
