"""Files of torch.save: what torch.load(weights_only=True) reads in them, or does not."""

import base64
import collections
import io
import pickle
import random
import tarfile
import warnings
import zipfile

import torch
from cases import Case

TOOL = f"torch {torch.__version__.split('+')[0]}"
FILE = "x.pt"
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
]


def tensor(value):
    """As a case has it: the bytes in the order of the elements."""
    value = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    data = bytes(value.flatten().view(torch.uint8).tolist()) if value.numel() else b""
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": base64.b64encode(data).decode()}


def flat(value, name=""):
    """Our names of the tensors in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return {name: tensor(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    if isinstance(value, torch.Size):
        return {}
    found = {}
    for key, inner in items:
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found


def loaded(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(data), weights_only=True)


def case(name, data, words="", on_purpose=""):
    """`words`: of our refusal; torch.load refuses the file, too, unless `on_purpose` says why it does not matter."""
    try:
        value = loaded(data)
    except Exception as error:
        assert words and not on_purpose, f"{name}: {TOOL} refuses it: {error}"
        return Case(name, {FILE: data}, {}, words)
    assert bool(words) == bool(on_purpose), f"{name}: {TOOL} reads it"
    return Case(name, {FILE: data}, {} if words else flat(value), words, on_purpose)


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def drawn(draw, dtype, shape):
    size = int(torch.tensor(shape).prod()) if shape else 1
    if dtype == torch.bool:
        return torch.tensor([draw.random() < 0.5 for _ in range(size)], dtype=dtype).view(shape)
    width = torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer(bytearray(draw.randbytes(size * width)), dtype=dtype).view(shape) if size else torch.empty(shape, dtype=dtype)


def plain(draw):
    for dtype in DTYPES:
        yield case(str(dtype)[6:], saved({str(shape): drawn(draw, dtype, shape) for shape in [(), (0,), (3,), (2, 3)]}))
    names = ["weight", "a.b.c", "层.0", "with blank", "x" * 200, "0", "😀", 'quoted "x"']
    for number in range(18):
        state = collections.OrderedDict() if number % 2 else {}
        for name in draw.sample(names, draw.randrange(1, 6)):
            state[name] = drawn(draw, draw.choice(DTYPES), tuple(draw.randrange(1, 4) for _ in range(draw.randrange(4))))
        yield case(f"drawn {number}", saved(state))
    for number in range(18):  # a view of a storage that others share
        whole = drawn(draw, draw.choice(DTYPES), (draw.randrange(2, 6), draw.randrange(2, 6)))
        first, second = draw.randrange(whole.shape[0]), draw.randrange(whole.shape[1])
        views = [
            whole,
            whole.t(),
            whole[first:],
            whole[:, second],
            whole[first],
            whole[first, second],
            whole[::2],
            whole[:, 1::2],
            whole.flatten()[1:],
        ]
        yield case(f"views {number}", saved({f"v{n}": view for n, view in enumerate(draw.sample(views, draw.randrange(1, 5)))}))


def make_exact(layer, optimizer=None):
    """Processors draw and round numbers each in their way: eighths instead, which all write alike. Returns the layer."""
    with torch.no_grad():
        states = [value for state in optimizer.state.values() for value in state.values()] if optimizer else []
        for tensor in [*layer.state_dict().values(), *states]:
            if torch.is_tensor(tensor) and tensor.is_floating_point() and tensor.dim() > 0:
                tensor.copy_((torch.arange(tensor.numel()) / 8).view(tensor.shape))
    return layer


def models():
    layer = make_exact(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.PReLU()))
    yield case("a state_dict", saved(layer.state_dict()))
    yield case("a state_dict as a dict", saved(dict(layer.state_dict())))
    yield case("parameters", saved(dict(layer.named_parameters())))
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adam, lambda p: torch.optim.AdamW(p, amsgrad=True)):
        optimizer = make(layer.parameters())
        layer(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        make_exact(layer, optimizer)
        name = type(optimizer).__name__
        yield case(
            f"a checkpoint with {name}", saved({"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.25})
        )
        yield case(f"the state of {name} alone", saved(optimizer.state_dict()))
    module = torch.nn.Module()
    module.register_buffer("mask", torch.tensor([True, False]))
    module.weight = module.tied = torch.nn.Parameter(torch.arange(4.0))
    yield case("tied parameters", saved(module.state_dict()))
    yield case("a whole module", saved(layer), "holds a Python class")
    yield case("tensors in a list", saved([torch.ones(2)]), "holds no dict", "a model's tensors have names")
    yield case("a tensor alone", saved(torch.ones(2)), "holds a Python class", "a model's tensors have names")
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(make_exact(torch.nn.Linear(2, 1))), script)
    # Without the paths of its sources, the id that is made of them, and the sources' order, which is another each time.
    def members(all_members):
        kept = {name: data for name, data in all_members.items() if not name.endswith((".debug_pkl", "serialization_id"))}
        return {name: b"" if "/code/" in name else data for name, data in kept.items()}

    yield case("TorchScript", rewritten(script.getvalue(), members), "x.pt")


def values():
    ones = torch.ones(2)
    others = {
        "none": None,
        "number": -5,
        "large number": 1 << 40,
        "number of 64 bits": -(1 << 63),
        "real": 0.5,
        "true": True,
        "text": "ünï",
        "no text": "",
        "bytes": b"\x00\xff",
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "dtype": torch.float16,
        "tuple": (1, 2),
        "empty": (),
        "list": [1, [2]],
        "dict": {},
        "ordered": collections.OrderedDict(a=1),
        "complex": 1 + 2j,
        "a set": {1, 2},
        "counter": collections.Counter("aab"),
        "layout": torch.strided,
        "bytearray": bytearray(b"xy"),
    }
    for name, value in others.items():
        yield case(f"a tensor between values: {name}", saved({"a": [value, ones, value], "value": value, "w": (value, {"x": ones})}))
    yield case("numbers as keys", saved({0: ones, 7: {1: ones}, -3: ones}))
    yield case("a key of None", saved({None: ones}), "is neither a text nor a number", "a model's tensors have names")
    yield case("shared lists", saved((lambda inner: {"a": inner, "b": inner})([ones, torch.zeros(1)])))
    yield case(
        "a name like a path", saved({"../w": ones}), "looks like a path", "such a name is no parameter's, and other tools make a path of it"
    )
    yield case("an empty name", saved({"": ones}), "is empty", "such a name is no parameter's")
    yield case("one name by two ways", saved({"a.b": ones, "a": {"b": ones}}), "appears twice", "one of the two would be lost")
    yield case(
        "expanded",
        saved({"w": torch.ones(1).expand(4)}),
        "save the clone() of an expanded tensor",
        "a few bytes could otherwise claim any memory",
    )
    yield case("conjugate", saved({"w": torch.tensor([1 + 2j]).conj()}))
    yield case("negative", saved({"w": torch.tensor([1 + 2j]).conj().imag}))
    yield case("sparse", saved({"w": torch.eye(2).to_sparse()}), "is sparse", "Troupe's models have no sparse tensors")
    yield case("quantized", saved({"w": torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)}), "quantized", "Troupe's models have none")
    yield case("meta", saved({"w": torch.empty(2, device="meta")}), "x.pt", "it has no values")
    yield case("requires a gradient", saved({"w": torch.ones(2, requires_grad=True)}))


class Danger:
    def __reduce__(self):
        return print, ("run by torch.load",)


def rewritten(data, change):
    """The same archive, as Python's zipfile writes it, with changed members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        members = change({info.filename: old.read(info) for info in old.infolist()})
        for name, content in members.items():
            new.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return stream.getvalue()


def others(draw):
    good = saved({"w": torch.arange(6.0).view(2, 3), "b": torch.ones(1)})
    yield case("code", saved({"w": torch.ones(1), "x": Danger()}), "holds a Python class")
    yield case("code alone", saved(Danger()), "holds a Python class")
    yield case("a range", saved({"w": torch.ones(1), "x": range(3)}), "holds a Python class")
    yield case("protocol 4", saved({"w": torch.ones(1)}, pickle_protocol=4), "protocol 4, Troupe reads 2")
    for name, value in [("dict", {"w": torch.ones(2)}), ("state_dict", torch.nn.Linear(1, 1).state_dict())]:
        old = saved(value, _use_new_zipfile_serialization=False)
        assert flat(loaded(old))
        # Its begin: what follows has addresses of memory in it, others each time.
        yield Case(
            f"the format before 1.6: {name}",
            {FILE: old[:128]},
            {},
            "PyTorch before 1.6",
            "it is several pickles in a row, of 2020 and before; saving again in Python is a line",
        )
    yield case("a pickle", pickle.dumps({"w": [1, 2]}), "x.pt")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("sys_info"))
    yield case("a tar archive", stream.getvalue(), "is not a zip archive")
    yield case("nothing", b"", "has 0 bytes")
    yield case("text", b"step-00000010\n" * 9, "is not a zip archive")
    yield case(
        "a Git LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n",
        "is a Git LFS pointer, not the file",
    )
    yield case("written by zipfile", rewritten(good, lambda members: members))
    yield case(
        "another top folder", rewritten(good, lambda members: {name.replace("archive/", "model/"): data for name, data in members.items()})
    )
    yield case(
        "big-endian",
        rewritten(good, lambda members: members | {"archive/byteorder": b"big"}),
        "is not little-endian",
        "machines of Troupe are little-endian",
    )
    yield case("no byteorder", rewritten(good, lambda members: {name: data for name, data in members.items() if "byteorder" not in name}))
    yield case(
        "no pickle", rewritten(good, lambda members: {name: data for name, data in members.items() if "data.pkl" not in name}), "x.pt"
    )
    yield case(
        "a storage is missing",
        rewritten(good, lambda members: {name: data for name, data in members.items() if not name.endswith("data/0")}),
        "and the file 0 bytes for it",
    )
    yield case("a storage is short", rewritten(good, lambda members: members | {"archive/data/0": bytes(8)}), "and the file 8 bytes for it")
    for length in range(0, len(good) - 22, 149):
        yield case(f"cut to {length} bytes", good[:length], FILE)


def cases():
    draw = random.Random(5)
    yield from plain(draw)
    yield from models()
    yield from values()
    yield from others(draw)
