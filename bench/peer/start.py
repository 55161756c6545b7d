"""PyTorch's side of the row start: a model of two numbers, one step of DDP on Gloo, then "first step"."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
if os.environ["RANK"] == "0":
    print("first step", flush=True)
dist.destroy_process_group()
