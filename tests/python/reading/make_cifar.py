"""CIFAR-10's binary files, and what torchvision's CIFAR10 reads in the same pictures as Python's files: pictures (n, 3, 32, 32), labels.
Most files lie here as gzip, which Troupe reads, since the cases would be large otherwise.
"""

import gzip
import pathlib
import pickle
import tempfile
from unittest import mock

import numpy
import torchvision
from torchvision.datasets import CIFAR10

from cases import Case

TOOL = f"torchvision {torchvision.__version__}"
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
BINARY = "torchvision reads the version for Python, which is pickled; Troupe reads the binary one alone"


def draw_batch(draw, rows, labels=None):
    """Few colours, so that it packs well."""
    pixels = draw.integers(0, 256, (rows, 3 * 32, 1), dtype=numpy.uint8).repeat(32, 2).reshape(rows, 3072)
    pixels[:, ::97] = draw.integers(0, 256, pixels[:, ::97].shape, dtype=numpy.uint8)
    return pixels, draw.integers(0, 10, rows) if labels is None else numpy.array(labels)


def binary(batch):
    pixels, labels = batch
    return numpy.concatenate([labels[:, None].astype(numpy.uint8), pixels], 1).tobytes()


def packed(files):
    return {f"{name}.bin.gz": gzip.compress(data, 9, mtime=0) for name, data in files.items()}


def read(batches):
    values = {}
    with (
        tempfile.TemporaryDirectory() as root,
        mock.patch.object(CIFAR10, "_check_integrity", return_value=True),
        mock.patch.object(CIFAR10, "_load_meta"),
    ):
        folder = pathlib.Path(root, CIFAR10.base_folder)
        folder.mkdir()
        for name, (pixels, labels) in batches.items():
            (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels.tolist()}))
        for part, train in (("train", True), ("test", False)):
            data = CIFAR10(root, train=train)
            values[part] = numpy.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
            values[f"{part}_labels"] = numpy.array(data.targets, numpy.int64)
    return values


def cases():
    draw = numpy.random.default_rng(3072)
    batches = {name: draw_batch(draw, 1) for name in NAMES}
    files = {name: binary(batch) for name, batch in batches.items()}
    yield Case("a picture each", packed(files), read(batches))
    uneven = {name: draw_batch(draw, 1 + (i == 2), [(3 * i + j) % 10 for j in range(1 + (i == 2))]) for i, name in enumerate(NAMES)}
    yield Case("files of unequal lengths", packed({name: binary(batch) for name, batch in uneven.items()}), read(uneven))
    plain = {f"{name}.bin": data for name, data in files.items()}
    yield Case("plain files", plain, read(batches))
    yield Case("plain beside .gz", {**plain, "data_batch_1.bin.gz": b"broken"}, read(batches))
    for name in NAMES:
        good = packed(files)
        yield Case(
            f"{name} missing",
            {key: value for key, value in good.items() if not key.startswith(name)},
            refused=f"{name}.bin nor {name}.bin.gz",
        )
        for title, data, words in (
            ("empty", b"", "are not a whole number of records"),
            ("a byte short", files[name][:-1], "record 0 is cut off at offset 3072"),
            ("a byte too much", files[name] + b"x", "record 1 is cut off at offset 3074"),
            ("text", b"<!DOCTYPE html>", "are not a whole number of records"),
            ("label 10", b"\x0a" + files[name][1:], "has label 10, num_classes is 10"),
            ("label 255", b"\xff" + files[name][1:], "has label 255"),
            ("CIFAR-100's two labels", b"\1" + files[name], "are not a whole number of records of 3073"),
        ):
            yield Case(f"{name}, {title}", {**good, **packed({name: data})}, refused=words)
        yield Case(f"{name}, cut gzip", {**good, f"{name}.bin.gz": good[f"{name}.bin.gz"][:-9]}, refused=f"{name}.bin.gz")
    pickled = {name: pickle.dumps({"data": pixels[:0], "labels": []}) for name, (pixels, _) in batches.items()}
    yield Case("the version for Python", pickled, refused="use CIFAR-10's binary version", on_purpose=BINARY)
    below = {f"cifar-10-batches-bin/{name}": data for name, data in packed(files).items()}
    yield Case("in the folder of its archive", below, refused="/cifar-10-batches-bin")
