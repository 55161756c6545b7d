"""average_weights.cpp with PyTorch: torchrun --nproc-per-node 2 average_weights.py

With a file as its argument, it saves its first weights there and takes samples in their order, to be compared."""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    def __init__(self, first, size, noisy):
        self.first, self.size, self.noisy = first, size, noisy

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        drawn = torch.sin(torch.arange(8, dtype=torch.double) + 8 * (self.first + index)) * 10000
        point = (2 * (drawn - drawn.floor()) - 1).float()
        outside = point.square().sum().item() > 8.0 / 3
        return point, int(outside != (self.noisy and index % 4 == 0))


def held_out(model, loader):
    """The mean loss and the accuracy, of each rank's samples alike."""
    sums = torch.zeros(3, dtype=torch.double)
    with torch.no_grad():
        for points, target in loader:
            scores = model(points)
            sums += torch.tensor([cross_entropy(scores, target, reduction="sum"), scores.argmax(1).eq(target).sum(), len(target)])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


dist.init_process_group("gloo")
torch.manual_seed(42)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
compared = len(sys.argv) > 1
if compared and dist.get_rank() == 0:
    torch.save({f"{part}.{name}": tensor for part in ("net", "average") for name, tensor in net.state_dict().items()}, sys.argv[1])
model = DistributedDataParallel(net)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
average.update_parameters(net)  # begins with the first weights
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=1e-4)
train, test = Points(0, 512, True), Points(512, 512, False)
order = DistributedSampler(train, shuffle=not compared)
loader = DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=order, drop_last=True)
test_loader = DataLoader(test, batch_size=64, sampler=DistributedSampler(test, shuffle=False))
best, since = 0.0, 0
for epoch in range(50):
    order.set_epoch(epoch)
    for points, target in loader:
        optimizer.zero_grad()
        cross_entropy(model(points), target).backward()
        optimizer.step()
        average.update_parameters(net)
    loss, accuracy = held_out(average, test_loader)
    best, since = max(best, accuracy), 0 if accuracy > best else since + 1
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} held-out loss {loss:.6f} accuracy {accuracy:.4f}", flush=True)
        torch.save({"average": average.module.state_dict(), "best": best, "since": since}, "average.pt")
    if since == 5:
        break
dist.destroy_process_group()
