"""MNIST's four IDX files, and what torchvision's MNIST reads in them: pictures (n, 1, h, w) and labels of both parts."""

import gzip
import pathlib
import struct
import tempfile

import numpy
import torchvision
from torchvision.datasets import mnist

from cases import Case

TOOL = f"torchvision {torchvision.__version__}"
NAMES = {
    "train": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
BELOW = "torchvision is given the folder above"


def idx(array, kind=8, shape=None, dimensions=None):
    shape = array.shape if shape is None else shape
    head = bytes([0, 0, kind, len(shape) if dimensions is None else dimensions])
    return head + b"".join(struct.pack(">I", n) for n in shape) + array.tobytes()


def arrays(draw, train=6, test=2, height=5, width=4):
    return {
        "train": draw.integers(0, 256, (train, height, width), dtype=numpy.uint8),
        "train_labels": draw.integers(0, 10, train, dtype=numpy.uint8),
        "test": draw.integers(0, 256, (test, height, width), dtype=numpy.uint8),
        "test_labels": draw.integers(0, 10, test, dtype=numpy.uint8),
    }


def files_of(parts):
    return {NAMES[part]: idx(array) for part, array in parts.items()}


def read(files):
    values = {}
    with tempfile.TemporaryDirectory() as folder:
        for part, name in NAMES.items():
            path = pathlib.Path(folder, name)
            path.write_bytes(files[name])
            labels = part.endswith("labels")
            tensor = (mnist.read_label_file if labels else mnist.read_image_file)(str(path)).numpy()
            values[part] = tensor if labels else tensor[:, None]
    return values


def cases():
    draw = numpy.random.default_rng(10)
    for train, test in ((1, 1), (2, 1), (1, 3), (7, 2), (20, 11)):
        for height, width in ((1, 1), (1, 6), (5, 1), (3, 4), (8, 8)):
            files = files_of(arrays(draw, train, test, height, width))
            yield Case(f"{train} and {test} pictures of {height} x {width}", files, read(files))
    files = files_of(arrays(draw, 2, 1, 28, 28))
    yield Case("MNIST's own size", files, read(files))
    for value in (0, 1, 127, 255):
        parts = arrays(draw)
        parts["train"][:] = value
        files = files_of(parts)
        yield Case(f"all pixels {value}", files, read(files))
    for label in range(10):
        parts = arrays(draw)
        parts["train_labels"][:] = label
        files = files_of(parts)
        yield Case(f"all labels {label}", files, read(files))
    base = files_of(arrays(draw))
    for packed in (list(NAMES.values()), [NAMES["train"]], [NAMES["test_labels"]], [NAMES["train_labels"], NAMES["test"]]):
        files = {name + ".gz" * (name in packed): gzip.compress(data, mtime=0) if name in packed else data for name, data in base.items()}
        yield Case(f"as .gz: {', '.join(packed)}", files, read(base))
    yield Case("plain beside .gz", {**base, **{name + ".gz": b"broken" for name in base}}, read(base))
    for folder in ("MNIST/raw", "FashionMNIST/raw", "raw"):
        files = {f"{folder}/{name}": data for name, data in base.items()}
        yield Case(f"in {folder}", files, refused=f"/{folder}", on_purpose=BELOW)
    for part, name in NAMES.items():
        data = base[name]
        start = 4 + 4 * data[3]
        yield Case(f"{part} missing", {key: value for key, value in base.items() if key != name}, refused=f"{name} nor {name}.gz")
        for title, wrong, words in (
            ("empty", b"", "bytes are not an IDX header"),
            ("three bytes", data[:3], "bytes are not an IDX header"),
            ("header cut off", data[: start - 1], "the header is cut off"),
            ("a byte short", data[:-1], f"the header promises {len(data) - start} bytes, there are {len(data) - start - 1}"),
            ("a byte too much", data + b"\0", f"the header promises {len(data) - start} bytes, there are {len(data) - start + 1}"),
            ("no data", data[:start], "there are 0"),
            ("text", b"<!DOCTYPE html><html>", "magic"),
            ("doubles", data[:2] + b"\x0e" + data[3:], "magic"),
            ("signed bytes", data[:2] + b"\x09" + data[3:], "magic"),
            ("other magic", b"\1" + data[1:], "magic"),
            ("the other way round", data[3::-1] + data[4:], "magic"),
            (
                "one dimension more",
                idx(numpy.frombuffer(data[start:], numpy.uint8).reshape(1, *struct.unpack(f">{data[3]}I", data[4:start]))),
                " expected",
            ),
            ("none in it", idx(numpy.zeros((0, *[1] * (data[3] - 1)), numpy.uint8)), "it holds nothing"),
            ("cut gzip", gzip.compress(data, mtime=0)[:-9], name),
        ):
            yield Case(f"{part}, {title}", {**base, name: wrong}, refused=words)
    odd = arrays(draw, height=6)["test"]
    yield Case(
        "test pictures of another size",
        {**base, NAMES["test"]: idx(odd)},
        refused="use all four files of the same data set",
        on_purpose="a model takes one size",
    )
    for label in (10, 255):
        wrong = idx(numpy.full(6, label, numpy.uint8))
        yield Case(
            f"label {label}",
            {**base, NAMES["train_labels"]: wrong},
            refused=f"has label {label}, num_classes is 10",
            on_purpose="no class of the model",
        )
    yield Case(
        "a label too few",
        {**base, NAMES["train_labels"]: idx(numpy.zeros(5, numpy.uint8))},
        refused="5 labels for 6 images",
        on_purpose="a sample has a label",
    )
    yield Case(
        "parts exchanged",
        {**base, NAMES["test_labels"]: base[NAMES["train_labels"]]},
        refused="6 labels for 2 images",
        on_purpose="a sample has a label",
    )
