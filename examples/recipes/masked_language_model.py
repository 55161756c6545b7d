"""masked_language_model.cpp with PyTorch: torchrun --nproc-per-node 2 masked_language_model.py

With a file as its argument, it saves its first weights there and takes samples in their order, to be compared."""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS, MASK, LONGEST = 29, 29, 12


class Sentences(Dataset):
    def __init__(self, first, size):
        self.first, self.size = first, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        i = self.first + index
        place = torch.arange(5 + i * 7 % (LONGEST - 4))
        words, masked = (i * 13 + place * (1 + i % 4)) % WORDS, (place + i) % 4 == 0
        return words.masked_fill(masked, MASK), words.masked_fill(~masked, -100)


def collate(examples):
    words, labels = zip(*examples)
    is_word = pad_sequence([torch.ones_like(w, dtype=torch.bool) for w in words], batch_first=True)
    return pad_sequence(words, batch_first=True), is_word, pad_sequence(labels, batch_first=True, padding_value=-100)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS + 1, 32), nn.Embedding(LONGEST, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0, batch_first=True)
        self.scores = nn.Linear(32, WORDS)

    def forward(self, words, is_word):
        return self.scores(self.layer(self.word(words) + self.place(torch.arange(words.size(1))), src_key_padding_mask=~is_word))


def summed_loss(model, words, is_word, labels):
    """The sum over the masked words, and how many they are on all ranks."""
    count = labels.ne(-100).sum()
    dist.all_reduce(count)
    return cross_entropy(model(words, is_word).flatten(0, 1), labels.flatten(), reduction="sum"), count


dist.init_process_group("gloo")
torch.manual_seed(42)
net = Encoder()
compared = len(sys.argv) > 1
if compared and dist.get_rank() == 0:
    torch.save(net.state_dict(), sys.argv[1])
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.003, weight_decay=1e-4)
train, test = Sentences(0, 4096), Sentences(4096, 512)
order = DistributedSampler(train, shuffle=not compared)
loader = DataLoader(train, 64 // dist.get_world_size(), sampler=order, drop_last=True, collate_fn=collate)
test_loader = DataLoader(test, 64, sampler=DistributedSampler(test, shuffle=False), collate_fn=collate)
for epoch in range(10):
    order.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        total, count = summed_loss(model, *batch)
        (total * dist.get_world_size() / count).backward()  # DDP divides by the world size
        optimizer.step()
    with torch.no_grad():
        sums = torch.tensor([summed_loss(net, *batch) for batch in test_loader], dtype=torch.double).sum(0)
    dist.all_reduce(sums[:1])
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} held-out loss {(sums[0] / sums[1]).item():.6f}", flush=True)
dist.destroy_process_group()
