"""Checks the models that `troupe checkpoint convert` wrote into FOLDER, and writes some of Python's: exchange_models.py FOLDER"""
import os
import pathlib
import sys

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def save_sharded(rank, path):
    """A part of what two ranks of torch.distributed.checkpoint write."""
    store = dist.FileStore(path + ".store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {"rows": distribute_tensor(torch.arange(35, dtype=torch.float32).view(7, 5), mesh, [Shard(0)]),
             "columns": distribute_tensor(torch.arange(12, dtype=torch.bfloat16).view(3, 4), mesh, [Shard(1)])}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path=path, save_distributed=True))
    dist.destroy_process_group()


if len(sys.argv) > 2:
    save_sharded(int(sys.argv[2]), sys.argv[1])
    sys.exit()

folder = pathlib.Path(sys.argv[1])
expected = {
    "weight": torch.arange(12, dtype=torch.float32).view(3, 4) + 30,
    "steps": torch.tensor(30),
    "half": torch.full((5,), 30.0, dtype=torch.bfloat16),
}
for found in (torch.load(folder / "model.pt"), safetensors.torch.load_file(folder / "model.safetensors")):
    assert set(found) == set(expected), set(found)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


class Twin(torch.nn.Module):
    """The module of the checkpoint's tensors, as one has it in Python."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 4))
        self.half = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(0))


twin = Twin()
twin.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
assert all(torch.equal(tensor, expected[name]) for name, tensor in twin.state_dict().items())

ranks = [os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, __file__, str(folder / "sharded"), str(rank)]) for rank in range(2)]
assert [os.waitpid(rank, 0)[1] for rank in ranks] == [0, 0]

layer = torch.nn.Linear(3, 2)
torch.save({"model": {"weight": torch.arange(6, dtype=torch.float32).view(2, 3), "half": torch.ones(4, dtype=torch.bfloat16)}, "epoch": 3},
           folder / "from_python.pt")
torch.save(layer.state_dict(), folder / "ordered.pt")
torch.save(layer, folder / "whole_module.pt")
torch.save(dict(layer.state_dict()), folder / "old_format.pt", _use_new_zipfile_serialization=False)
