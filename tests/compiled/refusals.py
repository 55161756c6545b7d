"""What `troupe compile`, `troupe pack` and the reader of a compiled file refuse, with the line that they print."""
import json
import os
import struct

import torch

from ring import FOLDER, passed, troupe
from troupe.model_file import safetensors

SOURCE = '''
import random
import torch
import torch.nn.functional as F
from torch import nn

X, Y = torch.randn(4, 6), torch.randint(3, (4,))


class Net(nn.Module):
    def __init__(self, change=lambda x: x):
        super().__init__()
        self.a, self.b, self.change = nn.Linear(6, 6), nn.Linear(6, 3), change

    def forward(self, x):
        return self.b(self.change(self.a(x)))


def branches(x):
    if x.sum() > 0:
        return x
    return -x


def fine(): return Net(), (X, Y)
def no_batch(): return Net()
def one_sample(): return Net(), (X[:1], Y[:1])
def uneven(): return Net(), (X, Y[:3])
def control_flow(): return Net(branches), (X, Y)
def item(): return Net(lambda x: x * x.sum().item()), (X, Y)
def masked(): return Net(lambda x: x + x[x > 0].sum()), (X, Y)
def noise(): return Net(lambda x: x + torch.randn_like(x)), (X, Y)
def fixed_batch(): return Net(lambda x: x.view(4, 6)), (X, Y)
def no_call(): return Net(lambda x: x @ torch.linalg.qr(x.T @ x + torch.eye(6)).R), (X, Y)
def synchronised(): return Net(nn.SyncBatchNorm(6)), (X, Y)
def nothing_trained(): return Net().requires_grad_(False), (X, Y)
def no_grad(): return Net(), lambda m, b: F.cross_entropy(m(b[0]).detach(), b[1]), (X, Y)
def vector_loss(): return Net(), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), (X, Y)
def whole_loss(): return Net(), lambda m, b: m(b[0]).argmax(), (X, Y)
def three(): return Net(), lambda m, b: (m(b[0]).sum(), 1, 2), (X, Y)
def unknown_key(): return Net(), lambda m, b: {"loss": F.cross_entropy(m(b[0]), b[1]), "accuracy": 1}, (X, Y)
def sum_alone(): return Net(), lambda m, b: {"sum": m(b[0]).sum()}, (X, Y)


@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def custom(): return Net(lambda x: torch.ops.mine.twice(x)), (X, Y)
def autocast_inside(): return Net(lambda x: casted(x)), (X, Y)


def casted(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.T @ x


class Writes(Net):
    def forward(self, x):
        with torch.no_grad():
            self.b.bias.add_(1)
        return super().forward(x)


def writes_parameter(): return Writes(), (X, Y)


class Table(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x)


def writes_unsaved(): return Table(), (X, Y)


class Rows(torch.utils.data.Dataset):
    def __init__(self, row): self.row = row
    def __len__(self): return 5
    def __getitem__(self, i): return self.row(i)


rows = Rows(lambda i: (torch.ones(2) * i, i))
random_rows = Rows(lambda i: (torch.randn(2), i))
seldom_random = Rows(lambda i: (torch.ones(2) * (random.random() < 1e-9), i))
ragged = Rows(lambda i: (torch.ones(2 + i // 3), i))
words = Rows(lambda i: {"text": "word"})
empty = []
generator = (  # no length
    {"x": torch.ones(2) * i} for i in range(5))
'''

# function -> what stands in the line.
COMPILE = {
    "no_batch": "does not return (model, loss, batch)", "one_sample": "at least 2 samples", "uneven": "different numbers of samples: input 4, target 3",
    "control_flow": "(if x.sum() > 0:)", "item": "aten.item.default depends on a tensor's values at source.py",
    "masked": "aten.index.Tensor depends on a tensor's values at source.py", "noise": "aten.randn_like.default draws random numbers",
    "fixed_batch": "this number of samples", "no_call": "AOTInductor has no C++ call for aten::linalg_qr", "synchronised": "change is a SyncBatchNorm", "nothing_trained": "no parameter that requires a gradient", "no_grad": "no parameter has an effect on the loss",
    "vector_loss": "not a tensor with one number", "whole_loss": "is of torch.int64", "three": "returns 3 values", "unknown_key": "returns 'accuracy'",
    "sum_alone": "one of 'sum' and 'count'", "custom": "mine.twice.default is not PyTorch's own", "autocast_inside": "--autocast",
    "writes_parameter": "forward writes to b.bias", "writes_unsaved": "not saved (persistent=False)", "missing": "has no missing", "X": "is not a function",
}


def check():
    folder = FOLDER
    source = folder / "source.py"
    source.write_text(SOURCE)
    out = folder / "refused.tm"
    out.unlink(missing_ok=True)

    def refuses(what, ran, wanted, code=(2,)):
        line = ran.stderr.strip()
        passed(f"refusals {what}: {line[:160]}", ran.returncode in code and wanted in line and len(line.splitlines()) == 1,
               f"exit code {ran.returncode}, wanted {wanted!r}: {line[-300:]}")

    for name, wanted in COMPILE.items():
        refuses(name, troupe("compile", f"source.py:{name}", "-o", out), wanted)
    passed("refusals leave no file", not out.exists())
    refuses("not NAME", troupe("compile", "source.py", "-o", out), "is not SOURCE.py:NAME")
    refuses("no file", troupe("compile", "nowhere.py:make", "-o", out), "there is no file nowhere.py")
    refuses("no folder", troupe("compile", "source.py:fine", "-o", "nowhere/m.tm"), "there is no folder nowhere")
    refuses("blocks", troupe("compile", "source.py:fine", "-o", out, "--blocks", "Layer"), "no module of the model has this class")
    refuses("dynamic", troupe("compile", "source.py:fine", "-o", out, "--dynamic", "other:1"), "the batch has no field")
    refuses("compiler", troupe("compile", "source.py:fine", "-o", out, CXX="no-such-compiler"), "there is no C++ compiler no-such-compiler")
    refuses("torch", troupe("compile", "source.py:fine", "-o", out, TROUPE_PYTHON="/usr/bin/python3"), "PyTorch for Python is needed", (1,))

    for name, wanted in (("random_rows", "gives a different sample 0 each time: its augmentation is random"),
                         ("seldom_random", "draws from random for sample 0: its augmentation is random"), ("ragged", "the same names, shapes and types"), ("words", "which is not a tensor"),
                         ("empty", "the data set is empty")):
        refuses(f"pack {name}", troupe("pack", f"source.py:{name}", "-o", folder / f"refused-{name}"), wanted)

    # The reader, with a file that is right and then changed.
    ran = troupe("compile", "source.py:fine", "-o", folder / "fine.tm", "--check")
    if not passed("refusals a plain model compiles", ran.returncode == 0, ran.stderr[-300:]):
        return
    content = (folder / "fine.tm").read_bytes()
    size = struct.unpack("<Q", content[8:16])[0]
    manifest = json.loads(content[16:16 + size])

    batch = folder / "refused.batch"
    batch.write_bytes(safetensors({"input": torch.randn(4, 6), "target": torch.randint(3, (4,))}))

    def reads(what, wanted, change=None, code=(65, 69), mode=0o644, cut=None, flip=None):
        changed = json.loads(json.dumps(manifest))
        if change:
            change(changed)
        text = json.dumps(changed, separators=(",", ":")).encode()
        text += b" " * (-(16 + len(text)) % 64)
        bad = bytearray(content[:8] + struct.pack("<Q", len(text)) + text + content[16 + size:])
        if flip is not None:
            bad[16 + len(text) + flip] ^= 1
        path = folder / "bad.tm"
        path.write_bytes(bytes(bad)[:cut])
        os.chmod(path, mode)
        refuses(f"reader, {what}", troupe("train", "gradients", path, batch, folder / "refused.out"), wanted, code)

    reads("another torch", "compiled for LibTorch 1.0", lambda m: m.update(torch="1.0"))
    reads("another processor", "a processor with avx9000", lambda m: m.update(instruction_set=["avx9000"]))
    reads("another device", "only cpu is supported", lambda m: m.update(device="cuda"))
    reads("a newer format", "the format is not 1", lambda m: m.update(format=2))
    reads("others may write", "may be changed by other users", mode=0o666)
    reads("a changed byte of code", "its section '0.backward' does not match its checksum", flip=5000)
    reads("a file cut off", "ends before its section", cut=len(content) - 300)
    reads("no model at all", "is not a compiled model", cut=10)
    reads("a value from nowhere", "takes a value that is not computed yet", lambda m: m["passes"]["train"]["calls"][0]["arguments"].__setitem__(0, {"value": 7}))
    batch.write_bytes(safetensors({"input": torch.randn(4, 5), "target": torch.randint(3, (4,))}))
    reads("a batch of another shape", "the batch's input: its shape is [4, 5], and the model was compiled for (s", code=(65,))
    batch.write_bytes(safetensors({"input": torch.randn(4, 6).double(), "target": torch.randint(3, (4,))}))
    reads("a batch of another type", "the batch's input: it is Double, and the model was compiled for Float", code=(65,))
    batch.write_bytes(safetensors({"input": torch.randn(4, 6), "target": torch.randint(3, (3,))}))
    reads("fields of unequal numbers", "the batch's target: its shape is [3]", code=(65,))
    batch.write_bytes(safetensors({"input": torch.randn(4, 6)}))
    reads("a field that is missing", "it has no field target", code=(2,))
