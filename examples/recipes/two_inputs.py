"""two_inputs.cpp with PyTorch: torchrun --nproc-per-node 2 two_inputs.py

With a file as its argument, it saves its first weights there and takes samples in their order, to be compared."""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

USERS = 64


class Ratings(Dataset):
    def __init__(self, first, size):
        self.first, self.size = first, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        i = self.first + index
        user = i * 37 % USERS
        item, taste = torch.sin(torch.arange(1, 5) * float(i)), torch.cos(torch.arange(1, 5) * float(user))
        return user, item, (taste * item).mean()


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_tower = nn.Embedding(USERS, 16)
        self.item_tower = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, user, item):
        return (self.user_tower(user) * self.item_tower(item)).sum(1)


dist.init_process_group("gloo")
torch.manual_seed(42)
net = TwoTowers()
compared = len(sys.argv) > 1
if compared and dist.get_rank() == 0:
    torch.save(net.state_dict(), sys.argv[1])
model = DistributedDataParallel(net)
decays = [net.item_tower[0].weight, net.item_tower[2].weight]
no_decay = [net.user_tower.weight, net.item_tower[0].bias, net.item_tower[2].bias]
optimizer = torch.optim.AdamW([{"params": decays}, {"params": no_decay, "weight_decay": 0}], lr=0.01, weight_decay=1e-4)
train, test = Ratings(0, 8192), Ratings(8192, 1024)
order = DistributedSampler(train, shuffle=not compared)
loader = DataLoader(train, 64 // dist.get_world_size(), sampler=order, drop_last=True)
test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False))
for epoch in range(10):
    order.set_epoch(epoch)
    for user, item, rating in loader:
        optimizer.zero_grad()
        (model(user, item) - rating).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        errors = torch.cat([net(user, item) - rating for user, item, rating in test_loader])
    loss, largest = errors.square().mean(), errors.abs().max()
    dist.all_reduce(loss)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} held-out loss {loss.item() / dist.get_world_size():.6f} error/largest {largest.item():.4f}", flush=True)
dist.destroy_process_group()
