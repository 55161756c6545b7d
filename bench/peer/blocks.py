"""What the peer's programs share: the values of bench/README.md, and the line protocol of a program that is run in turns."""
import ctypes
import os
import sys

import torch
import torch.distributed as dist


def start():
    """Joins torchrun's process group on Gloo with one thread on a core of its own; returns (rank, world size)."""
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return rank, dist.get_world_size()


def hashes(stream, numel):
    """24 bits for each index of a stream, the same in every language (bench/README.md)."""
    h = (torch.arange(numel, dtype=torch.int64) + stream * 0x9E3779B1) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> shift
        h = (h * factor) & 0xFFFFFFFF
    h ^= h >> 16
    return h >> 8


def values(stream, numel, scale):
    """`numel` floats in [-scale, scale)."""
    return (hashes(stream, numel) - (1 << 23)).to(torch.float32) * torch.tensor(scale / (1 << 23), dtype=torch.float32)


def integers(stream, numel, end):
    """`numel` numbers in [0, end)."""
    return hashes(stream, numel) % end


def write_raw(path, tensors):
    """The tensors' float32 values, one after the other."""
    with open(path, "wb") as file:
        for tensor in tensors:
            tensor = tensor.detach().to(torch.float32).contiguous()
            file.write(ctypes.string_at(tensor.data_ptr(), tensor.numel() * 4))


def serve(rank, commands):
    """Rank 0 reads `VERB ARGUMENT` lines from standard input and tells the others; each rank calls commands[VERB](ARGUMENT).

    What rank 0's call returns is printed as the answer. Ends at `quit` or the end of the input.
    """
    if rank == 0:
        print("ready", flush=True)
    while True:
        line = [(sys.stdin.readline().strip() or "quit") if rank == 0 else None]
        dist.broadcast_object_list(line, src=0)
        verb, _, argument = line[0].partition(" ")
        if verb == "quit":
            break
        answer = commands[verb](argument)
        if rank == 0:
            print(answer, flush=True)
    dist.destroy_process_group()


def serve_alone(commands):
    """As serve, of one rank, which has nobody to tell."""
    print("ready", flush=True)
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "quit":
            break
        print(commands[verb](argument), flush=True)
