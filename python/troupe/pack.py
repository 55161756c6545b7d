"""`troupe pack`: python3 -m troupe.pack SOURCE.py:DATASET -o FOLDER

Any data set in Python (torchvision's, Hugging Face's, a generator) as files of tensors that `--data packed` reads without Python.
"""
import argparse
import hashlib
import json
import os
import pathlib
import sys

from .compile import quiet
from .refusal import Refusal


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="troupe pack", description="Writes a data set's samples into files for `troupe train --data packed "
                                     "--data_dir FOLDER`. If it is run again, it continues where it was interrupted.")
    parser.add_argument("source", metavar="SOURCE.py:DATASET", help="a data set, a pair (train, held_out), or a function that returns one of them. "
                        "A sample is a tuple (input, target) or a dict of tensors, arrays or numbers")
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder to write")
    parser.add_argument("--file_samples", metavar="N", type=int, help="samples of a file (default: about 64 MiB)")
    parser.add_argument("--workers", metavar="N", type=int, default=0, help="processes that read samples (default: only this one)")
    parser.add_argument("--passes", metavar="N", type=int, default=1, help="for random augmentation: pack the training data N times; epoch e "
                        "reads pass e modulo N (default: 1)")
    options = parser.parse_args(arguments)
    quiet()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        sys.exit(f"troupe pack: PyTorch for Python is needed to pack data, not to train on it: {error}; install torch==2.11.0 in a virtual environment, and set TROUPE_PYTHON to its python3")
    try:
        print(pack(options))
    except Refusal as refusal:
        print(f"troupe pack: {refusal}", file=sys.stderr)
        return 2
    return 0


def fields_of(sample, index):
    """name -> tensor of a sample."""
    import torch
    if isinstance(sample, dict):
        items = list(sample.items())
    elif isinstance(sample, (tuple, list)) and len(sample) == 2:
        items = list(zip(("input", "target"), sample))
    elif isinstance(sample, torch.Tensor):
        items = [("input", sample)]
    else:
        raise Refusal(f"sample {index} is a {type(sample).__name__}; a sample is (input, target) or a dict of tensors, arrays or numbers")
    fields = {}
    for name, value in items:
        try:
            fields[str(name)] = torch.as_tensor(value).detach().cpu().contiguous()
        except (TypeError, ValueError, RuntimeError):
            raise Refusal(f"sample {index} has a {type(value).__name__} as {name}, which is not a tensor; turn it into one, or leave it out") from None
    return fields


class Numbered:
    """A map-style data set's samples from `first` on, for a DataLoader."""

    def __init__(self, dataset, first):
        self.dataset, self.first = dataset, first

    def __len__(self):
        return len(self.dataset) - self.first

    def __getitem__(self, index):
        return fields_of(self.dataset[self.first + index], self.first + index)


def samples_from(dataset, first, workers):
    """Samples from number `first` on."""
    from torch.utils.data import DataLoader
    if by_number(dataset):
        yield from DataLoader(Numbered(dataset, first), batch_size=None, shuffle=False, num_workers=workers)
        return
    if workers:
        raise Refusal("--workers: the data set has no length and no index, so only one process can read it; leave --workers out")
    for index, sample in enumerate(dataset):
        if index >= first:
            yield fields_of(sample, index)


def random_states():
    """Of the generators that augmentations draw from."""
    import random
    import torch
    numpy = sys.modules.get("numpy")
    return {"torch": torch.get_rng_state().tolist(), "random": random.getstate(), "numpy.random": repr(numpy.random.get_state()) if numpy else ""}


def why_random(dataset):
    """Why a sample is not the same each time, or an empty text. Looks at 8 of a data set whose samples have numbers."""
    if not by_number(dataset) or not len(dataset):
        return ""
    import torch
    for index in sorted({i * (len(dataset) - 1) // 7 for i in range(8)}):
        (first, states), (again, later) = ((fields_of(dataset[index], index), random_states()) for _ in range(2))
        if any(not torch.equal(first[name], again[name]) for name in first if name in again):
            return f"gives a different sample {index} each time"
        for name, state in states.items():  # drawn in vain this time; a data set that sets a seed for each sample leaves it alike
            if state != later[name]:
                return f"draws from {name} for sample {index}"
    return ""


def by_number(dataset):
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def form_of(fields):
    from .model_file import SAFETENSORS_TYPES
    for name, tensor in fields.items():
        if tensor.dtype not in SAFETENSORS_TYPES:
            raise Refusal(f"the field {name} is of {tensor.dtype}, which a file cannot hold")
    return [{"name": name, "dtype": SAFETENSORS_TYPES[tensor.dtype], "shape": list(tensor.shape)} for name, tensor in fields.items()]


def write_whole(path, content):
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


class Packing:
    """The folder, and the list of what is in it; after an interruption, what was in it."""

    def __init__(self, folder, source, file_samples, passes):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal = self.folder / "packing.json"
        self.index = self.folder / "packed.json"
        self.key = {"source": source, "file_samples": file_samples, "passes": passes}
        self.fields, self.files, self.file_samples = None, [], file_samples
        if self.index.exists():
            raise Refusal(f"{self.index} exists: the data is already packed; remove the folder to pack it again")
        if self.journal.exists():
            before = json.loads(self.journal.read_text())
            if before["key"] != self.key:
                raise Refusal(f"{folder} was begun with {before['key']}; continue with the same, or remove it")
            self.fields, self.files, self.file_samples = before["fields"], before["files"], before["file_samples"]
        elif any(self.folder.iterdir()):
            raise Refusal(f"{folder} is not empty")

    def note(self):
        write_whole(self.journal, json.dumps({"key": self.key, "fields": self.fields, "files": self.files,
                                              "file_samples": self.file_samples}).encode())

    def pack(self, part, number, dataset, workers):
        """One pass of a part. Returns its samples."""
        from .model_file import safetensors
        import torch
        done = [f for f in self.files if f["part"] == part and f["pass"] == number]
        count, rows = sum(f["samples"] for f in done), []
        if done and done[-1].get("last"):
            return count

        def write(last):
            nonlocal rows
            name = f"{part}-{number:03d}-{len([f for f in self.files if f['part'] == part and f['pass'] == number]):05d}.safetensors"
            content = safetensors({f["name"]: torch.stack([row[f["name"]] for row in rows]) for f in self.fields})
            write_whole(self.folder / name, content)
            self.files.append({"name": name, "part": part, "pass": number, "samples": len(rows), "sha256": hashlib.sha256(content).hexdigest(),
                               **({"last": True} if last else {})})
            self.note()
            rows = []

        begin = count
        for fields in samples_from(dataset, begin, workers):
            form = form_of(fields)
            if self.fields is None:
                self.fields = form
                size = sum(t.numel() * t.element_size() for t in fields.values())
                self.file_samples = self.file_samples or max(1, (64 << 20) // max(1, size))
            if form != self.fields:
                raise Refusal(f"sample {count} of {part} has {form}, and the first one {self.fields}; give all samples the same names, shapes and types")
            if len(rows) == self.file_samples:  # not before it is known that there are more: the last file says that it is
                write(last=False)
            rows.append(fields)
            count += 1
        if rows:
            write(last=True)
        return count

    def finish(self, train, held_out, passes):
        files = [{k: v for k, v in f.items() if k != "last"} for f in self.files]
        write_whole(self.index, json.dumps({"format": 1, "fields": self.fields, "train": train, "held_out": held_out, "passes": passes,
                                            "files": files}, indent=1).encode())
        self.journal.unlink()


def parts_of(text):
    from .source import attribute
    given = attribute(text)
    if callable(given) and not hasattr(given, "__getitem__") and not hasattr(given, "__iter__"):
        given = given()
    return train_and_held_out(given)


def train_and_held_out(given):
    """Of a pair, also as random_split gives it; a data set alone has nothing held out."""
    from torch.utils.data import Dataset
    pair = len(given) == 2 if isinstance(given, (tuple, list)) else False
    if pair and (isinstance(given, tuple) or all(isinstance(part, Dataset) for part in given)):
        return given
    return given, None


def pack(options):
    if options.passes < 1 or (options.file_samples is not None and options.file_samples < 1):
        raise Refusal("--passes and --file_samples must be at least 1")
    return pack_parts(*parts_of(options.source), options.output, source=options.source, file_samples=options.file_samples, workers=options.workers,
                      passes=options.passes)


def pack_parts(train, held_out, output, source="", file_samples=None, workers=0, passes=1):
    """Writes the folder `output`; returns a line about it. `source` is what an interrupted run of the same is known by."""
    random = why_random(train) if passes == 1 else ""
    if random:
        raise Refusal(f"the data set {random}: its augmentation is random. Leave it out, or pack several passes: --passes 10")
    random = why_random(held_out) if held_out is not None else ""
    if random:
        raise Refusal(f"the held-out data {random}; leave the random augmentation out of it")
    packing = Packing(output, source, file_samples, passes)
    counts = {packing.pack("train", number, train, workers) for number in range(passes)}
    if len(counts) != 1 or 0 in counts:
        raise Refusal("the data set is empty" if counts == {0} else f"the passes have different numbers of samples: {sorted(counts)}")
    rest = packing.pack("held_out", 0, held_out, workers) if held_out is not None else 0
    packing.finish(counts.pop(), rest, passes)
    there = json.loads(packing.index.read_text())
    files = len(there["files"])
    return f"{output}: {there['train']} samples to train on, {there['held_out']} held out, in {files} file{'s' if files > 1 else ''}"


if __name__ == "__main__":
    sys.exit(main())
