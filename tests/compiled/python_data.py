"""Data classes that people have: `troupe pack` of them, read back; and `troupe.train`."""
import hashlib
import json
import os

import torch
from torch import nn

from ring import FOLDER, passed, troupe

SOURCE = """
import pathlib
import datasets, torch, torchvision
from torchvision.transforms import v2

HERE = pathlib.Path(__file__).parent
pixels = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
flipped = v2.Compose([v2.RandomHorizontalFlip(0.5), pixels])
fake = torchvision.datasets.FakeData(size=20, image_size=(3, 8, 8), num_classes=4, transform=pixels)
fake_flipped = torchvision.datasets.FakeData(size=20, image_size=(3, 8, 8), num_classes=4, transform=flipped)
rows = datasets.Dataset.from_dict({"ids": [[i, i + 1, i + 2] for i in range(20)], "label": list(range(20)), "score": [i / 7 for i in range(20)]})
arrow = rows.with_format("torch")
numpy_rows = rows.with_format("numpy")
words = datasets.Dataset.from_dict({"text": ["word"] * 3})


def split():
    return torch.utils.data.random_split(torch.utils.data.TensorDataset(torch.randn(20, 3), torch.arange(20)), [15, 5])


def stream():
    return rows.with_format("torch").to_iterable_dataset()


def folder():
    if not (HERE / "images").exists():
        for name in ("cats", "dogs"):
            (HERE / "images" / name).mkdir(parents=True)
            for i in range(3):
                image = torchvision.transforms.functional.to_pil_image(torch.full((3, 8, 8), 40 * i + (name == "dogs"), dtype=torch.uint8))
                image.save(HERE / "images" / name / f"{i}.png")
    return torchvision.datasets.ImageFolder(HERE / "images", transform=pixels)
"""


def samples_of(packed, part):
    """The rows of a packed part, each a dict of tensors."""
    from safetensors.torch import load_file
    rows = []
    for file in json.loads((packed / "packed.json").read_text())["files"]:
        if file["part"] == part:
            assert hashlib.sha256((packed / file["name"]).read_bytes()).hexdigest() == file["sha256"]
            fields = load_file(packed / file["name"])
            rows += [{name: tensor[i] for name, tensor in fields.items()} for i in range(file["samples"])]
    return rows


def check_data():
    """Each sample of packed data is the data set's own."""
    import importlib.util
    import shutil
    (FOLDER / "classes.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("classes", FOLDER / "classes.py")
    classes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classes)
    for name, more in (("fake", ["--workers", 2]), ("folder", ["--file_samples", 4]), ("arrow", []), ("numpy_rows", ["--file_samples", 3]), ("stream", [])):
        out = FOLDER / f"classes-{name}"
        shutil.rmtree(out, ignore_errors=True)
        ran = troupe("pack", f"classes.py:{name}", "-o", out, *more)
        if not passed(f"data {name}: {ran.stdout.strip()}", ran.returncode == 0, ran.stderr[-300:]):
            continue
        data = getattr(classes, name)
        wanted = [row if isinstance(row, dict) else dict(zip(("input", "target"), row)) for row in (data() if callable(data) else data)]
        found = samples_of(out, "train")
        same = len(found) == len(wanted) and all(
            torch.equal(f[field], torch.as_tensor(value)) for f, w in zip(found, wanted) for field, value in w.items())
        passed(f"data {name}: {len(found)} samples are the same", same, f"{found[:1]}, wanted {wanted[:1]}")
    shutil.rmtree(FOLDER / "classes-split", ignore_errors=True)
    ran = troupe("pack", "classes.py:split", "-o", FOLDER / "classes-split")
    passed(f"data split: {ran.stdout.strip()}", "15 samples to train on, 5 held out" in ran.stdout, ran.stderr[-300:])
    for name, wanted in (("fake_flipped", "its augmentation is random"), ("words", "which is not a tensor")):
        ran = troupe("pack", f"classes.py:{name}", "-o", FOLDER / f"refused-{name}")
        passed(f"data {name}: {ran.stderr.strip()}", ran.returncode == 2 and wanted in ran.stderr, ran.stderr[-300:])
    shutil.rmtree(FOLDER / "classes-passes", ignore_errors=True)
    ran = troupe("pack", "classes.py:fake_flipped", "-o", FOLDER / "classes-passes", "--passes", 3)
    passed(f"data of 3 passes: {ran.stdout.strip()}", ran.returncode == 0 and len(samples_of(FOLDER / "classes-passes", "train")) == 60, ran.stderr[-300:])
    check_interrupted()
    check_call()


def check_interrupted():
    """Packing that a sample ends goes on behind the files that are whole, and has the bytes of one that nothing ended."""
    import shutil
    (FOLDER / "broken.py").write_text("""
import os, torch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 50
    def __getitem__(self, i):
        if i == 20 and os.environ.get("KILL"): os.kill(os.getpid(), 9)
        if i and i < int(os.environ.get("FIRST", 0)) and i % 7: raise ValueError(f"sample {i} is read again")
        return {"x": torch.full((3,), float(i))}
rows = Rows()
""")
    one, two = FOLDER / "broken-one", FOLDER / "broken-two"
    for path in (one, two):
        shutil.rmtree(path, ignore_errors=True)
    troupe("pack", "broken.py:rows", "-o", one, "--file_samples", 8)
    killed = troupe("pack", "broken.py:rows", "-o", two, "--file_samples", 8, KILL="1")
    passed("data: packing was killed", killed.returncode == -9 and not (two / "packed.json").exists(), killed.stderr[-300:])
    other = troupe("pack", "broken.py:rows", "-o", two, "--file_samples", 9)
    passed(f"data: {other.stderr.strip()}", other.returncode == 2 and "was begun with" in other.stderr, other.stderr[-300:])
    then = troupe("pack", "broken.py:rows", "-o", two, "--file_samples", 8, FIRST="16")
    files = {path.name: path.read_bytes() for path in sorted(one.iterdir())}
    same = then.returncode == 0 and files == {path.name: path.read_bytes() for path in sorted(two.iterdir())}
    passed("data: packing that was killed goes on, with the same files", same, then.stderr[-300:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def check_call():
    """`troupe.train`, in this process, which has used threads before."""
    import shutil

    import troupe as package
    torch.manual_seed(1)
    torch.set_num_threads(2)
    inputs = torch.randn(200, 8)
    labels = (inputs @ torch.randn(8, 3)).argmax(1)
    data = torch.utils.data.TensorDataset(inputs[:160], labels[:160]), torch.utils.data.TensorDataset(inputs[160:], labels[160:])
    model, here = Net(), FOLDER / "call"
    nn.functional.cross_entropy(model(inputs), labels).backward()
    shutil.rmtree(here, ignore_errors=True)

    def right():
        return (model(inputs[160:]).argmax(1) == labels[160:]).sum().item()

    def accuracy():
        records = [json.loads(line) for line in (here / "run/metrics.jsonl").read_text().splitlines()]
        return [r for r in records if r["kind"] == "validation"][-1]

    def refuses(what, wanted, kind=package.Refusal, **more):
        try:
            package.train(**{"model": Net(), "data": data, "folder": FOLDER / "call-refused", **more})
        except kind as error:
            return passed(f"call {what}: {error}", wanted in str(error), str(error))
        return passed(f"call {what}", False, "nothing was raised")

    before = right()
    settings = {"folder": here, "batch_size": 20, "lr": 0.05, "optimizer": "adamw", "schedule": "constant", "progress_bar": False}
    try:
        package.train(model, data, nproc=2, epochs=10, **settings)
    except (package.Refusal, RuntimeError) as error:
        passed("call", False, str(error))
        return
    middle = right()
    passed(f"call: {before}, then {middle} of 40 are right", middle > max(before, 30))
    passed("call: the model has the weights that were validated last", str(accuracy()).find(str(middle / 40)) >= 0, str(accuracy()))
    passed("call: threads are as before", torch.get_num_threads() == 2)
    package.train(model, data, nproc=1, resume=True, epochs=12, **settings)
    steps = [json.loads(line) for line in (here / "run/metrics.jsonl").read_text().splitlines()]
    passed("call: it is resumed with one rank", steps[-1]["kind"] == "end" and steps[-1]["step"] == 96, str(steps[-1]))
    refuses("of a folder that is in use", "is not empty", folder=here)
    refuses("to resume nothing", "there is nothing to resume", resume=True)
    refuses("of an iterator", "can be read once only", data=iter(data[0]))
    refuses("of ragged samples", "differ in names or shapes", data=[(torch.ones(2), 1), (torch.ones(3), 1)])
    refuses("of one sample", "at least 2 are needed", data=[(torch.ones(8), 1)])
    passed("call: a refusal leaves no folder", not os.path.exists(FOLDER / "call-refused"))
    refuses("with a setting that is not there", "ended with exit code", kind=RuntimeError, no_such_setting=1)
    shutil.rmtree(FOLDER / "call-refused", ignore_errors=True)
