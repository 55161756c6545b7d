"""low_rank_adapters.cpp with PyTorch: torchrun --nproc-per-node 2 low_rank_adapters.py base.safetensors

With another file as its argument, it saves its first weights there and takes samples in their order, to be compared."""
import math
import sys

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import linear, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Wave(Dataset):
    def __init__(self, offset, shift):
        self.offset, self.shift = offset, shift

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        x = 2 * (index + self.offset) / 2048 - 1
        return torch.tensor([x]), torch.tensor([math.sin(3 * x + self.shift)])


class AdaptedLinear(nn.Linear):
    def __init__(self, into, out, rank):
        super().__init__(into, out)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, into) / math.sqrt(into))
        self.up = nn.Parameter(torch.zeros(out, rank))

    def forward(self, x):
        return super().forward(x) + linear(linear(x, self.down), self.up)


dist.init_process_group("gloo")
torch.manual_seed(42)
net = nn.Sequential(AdaptedLinear(1, 64, 2), nn.Tanh(), AdaptedLinear(64, 64, 2), nn.Tanh(), AdaptedLinear(64, 1, 2))
absent = net.load_state_dict(load_file(sys.argv[1]), strict=False)
assert not absent.unexpected_keys and all(name.endswith((".down", ".up")) for name in absent.missing_keys), absent
compared = len(sys.argv) > 2
if compared and dist.get_rank() == 0:
    torch.save(net.state_dict(), sys.argv[2])
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.005, weight_decay=1e-4)
train, test = Wave(0, 0.5), Wave(0.5, 0.5)
order = DistributedSampler(train, shuffle=not compared)
loader = DataLoader(train, 64 // dist.get_world_size(), sampler=order, drop_last=True)
test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False))
for epoch in range(10):
    order.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        loss = torch.cat([(net(x) - y).square() for x, y in test_loader]).mean()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} held-out loss {loss.item() / dist.get_world_size():.6f}", flush=True)
dist.destroy_process_group()
