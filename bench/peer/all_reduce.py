"""PyTorch's side of the all_reduce rows: dist.all_reduce on Gloo, the input freshly written before each operation.

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/all_reduce.py

then on standard input `bytes N ROUNDS`, `quit`; the answer is `write_and_reduce_us t t ...` after `reduce_us t t ...` on a line before.
"""
import time

import torch
import torch.distributed as dist

import blocks


def main():
    rank, world_size = blocks.start()

    def measure(argument):
        size, rounds = map(int, argument.split())
        tensor = torch.zeros(size // 4)
        reduce_us, total_us = [], []
        for i in range(-3, rounds):
            dist.barrier()
            begin = time.perf_counter()
            tensor.fill_(i)
            written = time.perf_counter()
            dist.all_reduce(tensor)
            end = time.perf_counter()
            assert tensor[-1].item() == world_size * i
            if i >= 0:
                reduce_us.append((end - written) * 1e6)
                total_us.append((end - begin) * 1e6)
        return "\n".join(name + " " + " ".join(f"{t:.2f}" for t in times)
                         for name, times in (("reduce_us", reduce_us), ("write_and_reduce_us", total_us)))

    blocks.serve(rank, {"bytes": measure})


if __name__ == "__main__":
    main()
