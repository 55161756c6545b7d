"""torchrun's side of bench/recover.py: small DDP steps of about 5 ms, each reported by rank 0."""
import ctypes
import os
import signal
import time

# torchrun's ranks are in sessions of their own, and would outlive it when it is killed: PR_SET_PDEATHSIG.
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == 1:
    raise SystemExit("torchrun is gone")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    rank = int(os.environ["RANK"])
    print(f"rank {rank} pid {os.getpid()}", flush=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(100000):
        time.sleep(0.005)
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
