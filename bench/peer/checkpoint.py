"""PyTorch's side of the checkpoint rows: torch.distributed.checkpoint.async_save and load of a DDP job's model and optimizer.

    .venv-bench/bin/torchrun --standalone --nproc-per-node 2 bench/peer/checkpoint.py --directory DIR [--process]

then on standard input `block N`, `save N`, `load`, `quit`; see bench/README.md.
"""
import argparse
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as functional
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel

import blocks
import jobs

LAYERS, BATCH = 32, 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--process", action="store_true", help="the writer in a process of its own instead of a thread")
    options = parser.parse_args()
    rank, _ = blocks.start()
    job = jobs.Mlp(rank, BATCH, LAYERS)
    model = DistributedDataParallel(job.model, gradient_as_bucket_view=True, bucket_cap_mb=25, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    x = job.inputs[0]
    kind = AsyncCheckpointerType.PROCESS if options.process else AsyncCheckpointerType.THREAD
    group = dist.new_group(backend="gloo")  # async_save's thread must not share training's
    saved = 0

    def state():
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state}

    def block(count, after_step=lambda number: None):
        times = []
        for number in range(int(count)):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=False)
            functional.mse_loss(model(x), x).backward()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1e3)
            after_step(number + 1)
        return "step_ms " + " ".join(f"{t:.4f}" for t in times)

    def save(count):
        nonlocal saved
        dist.barrier()
        if rank == 0 and saved:
            shutil.rmtree(f"{options.directory}/{saved - 1}", ignore_errors=True)
        dist.barrier()
        begin = time.perf_counter()
        future = dcp.async_save(state(), checkpoint_id=f"{options.directory}/{saved}", async_checkpointer_type=kind,
                                process_group=group)
        blocking = (time.perf_counter() - begin) * 1e3
        saved += 1
        safe_after = []
        steps = block(count, lambda number: safe_after.append(number) if not safe_after and future.done() else None)
        begin = time.perf_counter()
        future.result()
        waited = (time.perf_counter() - begin) * 1e3
        return f"blocking_ms {blocking:.3f}\nwaited_ms {waited:.3f}\nsafe_after {sum(safe_after)}\n{steps}"

    def load(_):
        dist.barrier()
        begin = time.perf_counter()
        loaded = state()
        dcp.load(loaded, checkpoint_id=f"{options.directory}/{saved - 1}")
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        dist.barrier()
        return f"load_ms {(time.perf_counter() - begin) * 1e3:.3f}"

    blocks.serve(rank, {"block": block, "save": save, "load": load})


if __name__ == "__main__":
    main()
