"""Checks the models that `troupe checkpoint convert` wrote into FOLDER, and writes some of Python's: exchange_models.py FOLDER"""
import pathlib
import sys

import safetensors.torch
import torch

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

layer = torch.nn.Linear(3, 2)
torch.save({"model": {"weight": torch.arange(6, dtype=torch.float32).view(2, 3), "half": torch.ones(4, dtype=torch.bfloat16)}, "epoch": 3},
           folder / "from_python.pt")
torch.save(layer.state_dict(), folder / "ordered.pt")
torch.save(layer, folder / "whole_module.pt")
torch.save(dict(layer.state_dict()), folder / "old_format.pt", _use_new_zipfile_serialization=False)
