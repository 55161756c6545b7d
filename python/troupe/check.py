"""`troupe compile --check`: the compiled file beside PyTorch, one forward and backward on the example batch, and on one of another size."""
import copy
import dataclasses
import pathlib
import subprocess
import tempfile

import torch
from torch import fx

from .command import program
from .capture import capture, dropout_mask
from .model_file import read_safetensors, safetensors
from .refusal import Refusal
from .source import loss_parts

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def compiled_results(source, path):
    """name -> tensor, of the C++ program."""
    with tempfile.TemporaryDirectory(prefix="troupe-check-") as folder:
        batch, out = pathlib.Path(folder) / "batch.safetensors", pathlib.Path(folder) / "out.safetensors"
        batch.write_bytes(safetensors(source.fields))
        ran = subprocess.run([program(), "train", "gradients", str(path), str(batch), str(out)], capture_output=True, text=True)
        if ran.returncode != 0:
            raise Refusal(f"the compiled file does not run: {(ran.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        return read_safetensors(out)


class WithMasks(fx.Interpreter):
    """Runs a captured graph with dropout masks that were drawn elsewhere."""

    def __init__(self, graph, masks):
        super().__init__(fx.GraphModule(torch.nn.Module(), graph))
        self.masks = iter(masks)

    def call_function(self, target, args, kwargs):
        return next(self.masks) if target is dropout_mask else super().call_function(target, args, kwargs)


def round_otherwise(model, seed):
    """Parameters become off by up to 8 roundings."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        rounding = 8 * torch.finfo(parameter.dtype).eps if parameter.is_floating_point() else 0
        parameter.data *= 1 + rounding * (2 * torch.rand(parameter.shape, generator=generator) - 1).to(parameter.dtype)


def eager_results(source, masks, autocast=None, seed=None):
    """The same of PyTorch: of the model itself, or of what was captured if it draws masks. With a seed: its parameters are off by some roundings."""
    model = copy.deepcopy(source.model)
    if seed is not None:
        round_otherwise(model, seed)
    training = model.training
    twin = copy.copy(source)
    twin.model = model
    model.train()
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        if masks:
            captured = capture(twin, True)
            tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False)), **captured.constants}
            inputs = [source.fields[captured.fields[n]] if n in captured.fields else tensors[captured.tensors[n][1]]
                      for n in captured.graph.find_nodes(op="placeholder")]
            value = WithMasks(captured.graph, masks).run(*inputs)[0]
        else:
            value, _, _ = loss_parts(source.loss(model, source.rebuild(list(source.fields.values()))))
    value.backward()
    results = {"loss": value.detach()}
    results.update({f"gradient:{name}": p.grad for name, p in model.named_parameters() if p.grad is not None})
    results.update({f"buffer:{name}": b.clone() for name, b in model.named_buffers() if name in model.state_dict()})
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        results["eval"] = loss_parts(source.loss(model, source.rebuild(list(source.fields.values()))), needs_gradient=False)[0]
    model.train(training)
    return results


def differences(source, path, autocast=None):
    """(name, relative difference, limit) of each result, the largest first. Relative to the largest element."""
    compiled = compiled_results(source, path)
    masks = [compiled[f"mask:{i}"] for i in range(sum(name.startswith("mask:") for name in compiled))]
    eager = eager_results(source, masks, autocast)
    tied = {f"gradient:{n}" for n, p in source.model.named_parameters(remove_duplicate=False)} - {f"gradient:{n}" for n, p in source.model.named_parameters()}
    missing = [n for n in eager if n not in compiled] + [n for n in compiled if n.startswith(("gradient:", "buffer:")) and n not in eager and n not in tied
                                                        and compiled[n].abs().max() > 0]
    if missing:
        raise Refusal(f"the compiled model and PyTorch do not both have {missing[0]}")

    def worst_of(name, wanted, unsure):
        """The difference beyond twice what rounding alone makes of each element, and what is allowed; relative to the largest element."""
        got, wanted64 = compiled[name].to(torch.float64), wanted.detach().to(torch.float64)
        # A gradient that should be 0 is noise of the others' size.
        scale = max(wanted64.abs().max().item() if wanted64.numel() else 0.0, 1e-3 * largest if name.startswith("gradient:") else 0.0, 1e-30)
        worst = ((got - wanted64).abs() - 2 * unsure).max().item() / scale if got.numel() else 0.0
        return worst if worst == worst else float("inf"), TOLERANCE[autocast or (wanted.dtype if wanted.dtype in TOLERANCE else torch.float64)]

    largest = max((g.abs().max().item() for n, g in eager.items() if n.startswith("gradient:") and g.numel()), default=1.0)
    found = [(name, *worst_of(name, wanted, 0)) for name, wanted in eager.items()]
    if any(worst > limit for _, worst, limit in found):
        # A ReLU's input may be so close to 0 that rounding decides about its gradient.
        others = [eager_results(source, masks, autocast, seed) for seed in range(8)]
        unsure = {name: torch.stack([(other[name].to(torch.float64) - wanted.to(torch.float64)).abs() for other in others]).amax(0)
                  for name, wanted in eager.items()}
        found = [(name, *worst_of(name, wanted.detach(), unsure[name].detach())) for name, wanted in eager.items()]
    return sorted(found, key=lambda f: -f[1] / f[2])


def larger(source):
    """The source with a batch of nearly twice as many samples."""
    return dataclasses.replace(source, fields={name: torch.cat([field, field[1:]]) for name, field in source.fields.items()})


def check(source, path, autocast=None):
    """A line about the comparison; a Refusal if it fails."""
    found = max(differences(source, path, autocast), differences(larger(source), path, autocast), key=lambda f: f[0][1] / f[0][2])
    name, worst, limit = found[0]
    if worst > limit:
        raise Refusal(f"{name} differs from PyTorch's by {worst:.1e} of its largest element, more than {limit:.0e}")
    return f"checked: loss, {sum(n.startswith('gradient:') for n, _, _ in found)} gradients, the worst {max(worst, 0.0):.1e} ({name})"
