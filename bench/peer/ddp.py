"""PyTorch's side of the ddp rows: DDP on Gloo, fused optimizer, fp32, one thread a rank.

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/ddp.py --job mlp --batch 16 --bucket-mb 25

then on standard input `block 15`, `weights FILE`, `quit`; see bench/README.md.
"""
import argparse

from torch.nn.parallel import DistributedDataParallel

import blocks
import jobs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=jobs.JOBS, default="mlp")
    parser.add_argument("--batch", type=int, required=True, help="samples per rank")
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--compile", choices=["whole", "blocks"], help="by torch.compile: the model as DDP has it, or each layer")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--set-to-none", action="store_true", help="drop the gradients between steps instead of zeroing them")
    options = parser.parse_args()
    rank, _ = blocks.start()
    job = jobs.JOBS[options.job](rank, options.batch)
    if options.channels_last:
        job = jobs.channels_last(job)
    model = DistributedDataParallel(job.model, gradient_as_bucket_view=True, bucket_cap_mb=options.bucket_mb,
                                    static_graph=options.static_graph, broadcast_buffers=False)
    optimizer = jobs.make_optimizer(options.job, model.parameters())
    jobs.serve(rank, job, jobs.compile_as(options.compile, job, model), optimizer, lambda: list(model.parameters()), options.set_to_none)


if __name__ == "__main__":
    main()
