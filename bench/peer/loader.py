"""PyTorch's side of the loader rows: torch.utils.data.DataLoader, with torchvision's ImageFolder or a TensorDataset.

    .venv-bench/bin/python3 bench/peer/loader.py folder FOLDER WORKERS
    .venv-bench/bin/python3 bench/peer/loader.py memory IMAGES WORKERS

then on standard input `block N`, `values PATH`, `quit`; bench/README.md has the protocol.
"""
import sys
import time

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

UNTIMED = 8


def folder(path):
    from torchvision import datasets, transforms
    return datasets.ImageFolder(path + "/train", transforms.Compose([
        transforms.Resize(224), transforms.CenterCrop(224), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])), 64


def cut_first(data, i):
    """The same sample, cut and then resized, as ours are: resized and then cut, what is seen lies up to half a pixel aside."""
    image = data.loader(data.samples[i][0])
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return data.transform(image.crop((left, top, left + side, top + side)))


def memory(path):
    """Already floats, already normalised: as quick as a data set in memory can be here."""
    images = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint8)).view(-1, 1, 28, 28)
    labels = torch.arange(len(images)).remainder(10)
    return TensorDataset((images.float() / 255 - 0.1307) / 0.3081, labels), 128


def batches(loader):
    while True:
        yield from loader


def main():
    torch.set_num_threads(1)
    kind, path, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    data, batch = {"folder": folder, "memory": memory}[kind](path)
    stream = batches(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0))
    next(stream)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "block":
            for _ in range(UNTIMED):
                next(stream)
            start = time.perf_counter()
            for _ in range(int(words[0])):
                next(stream)
            print("batch_ms", 1e3 * (time.perf_counter() - start) / int(words[0]), flush=True)
        elif verb == "values":
            samples = [data[i][0] for i in range(32)] if kind == "memory" else [cut_first(data, i) for i in range(32)]
            torch.stack(samples).numpy().tofile(words[0])
            print("values", words[0], flush=True)
        else:
            break


if __name__ == "__main__":
    main()
