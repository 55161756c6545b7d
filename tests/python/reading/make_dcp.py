"""Folders of torch.distributed.checkpoint, written by 1 to 4 ranks: what its reader for safetensors reads in them."""

import base64
import json
import os
import pathlib
import pickle
import struct
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cases import Case
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

TOOL = f"torch {torch.__version__.split('+')[0]}"
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int64, torch.uint8]  # those that its reader knows


def numbered(shape, dtype, begin=0):
    return (torch.arange(begin, begin + int(torch.tensor(shape).prod())) % 100).view(shape).to(dtype)


def states(mesh, ranks):
    """Name -> state dict, spread over the mesh."""
    torch.manual_seed(0)

    def over(tensor, *placements):
        return distribute_tensor(tensor, mesh, list(placements))

    yield "rows", {"w": over(numbered((7, 5), torch.float32), Shard(0))}
    yield "columns", {"w": over(numbered((3, 8), torch.bfloat16), Shard(1))}
    yield "fewer rows than ranks", {"w": over(numbered((2, 3), torch.float32), Shard(0)), "b": over(numbered((1,), torch.int64), Shard(0))}
    yield "the same on all", {"w": over(numbered((2, 3), torch.float64), Replicate()), "plain": numbered((4,), torch.float32)}
    yield "all dtypes", {str(dtype)[6:]: over(numbered((5, 2), dtype, 3), Shard(0)) for dtype in DTYPES}
    yield "scalars", {"step": torch.tensor(7.0), "count": torch.tensor(3), "w": over(numbered((4, 2), torch.float32), Shard(0))}
    yield "transposed", {
        "w": over(numbered((6, 4), torch.float32).t().contiguous().t(), Shard(0)),
        "view": numbered((4, 6), torch.float32)[:, ::2],
    }
    yield "three dimensions", {"w": over(numbered((2, 6, 3), torch.float16), Shard(1))}
    yield "empty", {"none": over(torch.empty(0, 3), Shard(0)), "w": over(numbered((3,), torch.float32), Shard(0))}
    layer = torch.nn.Linear(4, 6)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {f"model.{name}": over(value.detach(), Shard(0)) for name, value in layer.state_dict().items()}
    for name, parameter in layer.named_parameters():
        state |= {
            f"optimizer.{name}.{key}": over(value, Shard(0)) if value.dim() else value for key, value in optimizer.state[parameter].items()
        }
    yield "an optimizer's state", state


def write(rank, ranks, folder):
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store{ranks}", ranks), rank=rank, world_size=ranks)
    for name, state in states(init_device_mesh("cpu", (ranks,)), ranks):
        full = {key: value.full_tensor() if hasattr(value, "full_tensor") else value for key, value in state.items()}
        writers = {"": dcp.HuggingFaceStorageWriter(f"{folder}/{name}, {ranks} ranks", save_distributed=True)}
        if name in ("rows", "an optimizer's state"):
            writers[", two files a rank"] = dcp.HuggingFaceStorageWriter(
                f"{folder}/{name}, {ranks} ranks, two files a rank",
                save_distributed=True,
                fqn_to_index_mapping={key: n % 2 + 1 for n, key in enumerate(sorted(state))},
            )
            writers[", made one"] = dcp.HuggingFaceStorageWriter(
                f"{folder}/{name}, {ranks} ranks, made one", save_distributed=True, enable_consolidation=True
            )
        if name == "rows":
            writers[", its own format"] = dcp.FileSystemWriter(f"{folder}/{name}, {ranks} ranks, its own format")
        for kind, writer in writers.items():
            if kind == ", two files a rank" and len(state) < 2:
                continue
            dcp.save(dict(state), storage_writer=writer)
            if rank == 0:
                torch.save(full, f"{folder}/{name}, {ranks} ranks{kind}.full")
    dist.destroy_process_group()


def tensor(value):
    value = torch.empty(value.shape, dtype=value.dtype).copy_(value)
    data = bytes(value.flatten().view(torch.uint8).tolist()) if value.numel() else b""
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": base64.b64encode(data).decode()}


def read(folder, full):
    """What torch's reader reads, into zeros of the whole shapes."""
    state = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in full.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    for name, value in full.items():
        # Torch 2.11 loses scalars on its way to one file.
        assert torch.equal(state[name], value) or (value.dim() == 0 and "made one" in folder.name), (folder, name)
    return {name: tensor(value) for name, value in state.items()}


def in_order(data):
    """A safetensors file with its metadata sorted: the package writes them in another order each time."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    if len(header.get("__metadata__", {})) < 2:
        return data
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def bytes_of(folder):
    return {
        str(path.relative_to(folder)): in_order(path.read_bytes()) if path.suffix == ".safetensors" else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def missing(name, files):
    """Each file once left out. What no name and no block shows is in docs/formats.md."""
    for lost in sorted(files):
        rest = {path: data for path, data in files.items() if path != lost}
        if rest and lost != sorted(files)[-1]:
            yield Case(f"{name}, without {lost}", rest, {}, f"add '{lost}'", "torch fills the hole with what the memory holds")


def cases():
    with tempfile.TemporaryDirectory() as top:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        for ranks in range(1, 5):
            words = [sys.executable, __file__, top, str(ranks)]
            started = [os.spawnve(os.P_NOWAIT, sys.executable, [*words, str(rank)], environment) for rank in range(ranks)]
            assert all(os.waitpid(rank, 0)[1] == 0 for rank in started)
        for result in sorted(pathlib.Path(top).glob("*.full")):
            folder, full = result.with_suffix(""), torch.load(result)
            files = bytes_of(folder)
            if "its own format" in folder.name:
                files[".metadata"] = pickle.dumps({"stands for": "torch's Metadata, which has a random name in it"}, protocol=4)
                yield Case(
                    folder.name,
                    {path: data[:64] for path, data in files.items()},
                    {},
                    "whose .metadata is a Python pickle",
                    "a pickle says where the tensors lie; torch.distributed.checkpoint.format_utils dcp_to_torch makes one file of them",
                )
                continue
            if "made one" in folder.name:
                files = {path: data for path, data in files.items() if not path.startswith("sharded/")} | {"sharded/x": b"passed over"}
            yield Case(folder.name, files, read(folder, full))
            if folder.name.startswith("rows, ") and folder.name.endswith(" ranks"):
                yield from missing(folder.name, files)


if __name__ == "__main__":
    write(int(sys.argv[3]), int(sys.argv[2]), sys.argv[1])
