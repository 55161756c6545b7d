"""From a Source to the file of a compiled model."""
import contextlib
import os
import pathlib
import time

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode

from . import joint, model_file, shared_object
from .capture import capture, first_line, users_line
from .fakes import contiguous, fresh, hint
from .refusal import Refusal
from .segments import chain, cut, find_blocks

TORCH_VERSION = "2.11.0"
AUTOCAST = {None: None, "bfloat16": torch.bfloat16}


class FixedLength(Exception):
    """A size that might vary, other than the number of samples, became a constant."""


class Build:
    """What is compiled so far. `beside`: a folder that can be written to; `say` prints a line of progress."""

    def __init__(self, source, beside, blocks=(), dynamic=(), autocast=None, recompute=1.0, say=lambda line: None):
        self.source, self.dynamic, self.say = source, dynamic, say
        self.autocast = AUTOCAST[autocast]
        self.budget = recompute
        self.lengths_vary, self.round = True, ""
        self.blocks = find_blocks(source.model, blocks)
        self.first_name, self.tied = {}, {}
        for name, tensor in [*source.model.named_parameters(remove_duplicate=False), *source.model.named_buffers(remove_duplicate=False)]:
            self.tied[name] = self.first_name.setdefault(id(tensor), name)
            if not tensor.is_contiguous():  # first values and buckets have no strides of their own
                tensor.data = tensor.data.contiguous()
        self.graphs, self.places, self.constants = [], {}, {}
        self.folder = shared_object.work_folder(beside)
        self.compiling = shared_object.Compiling(self.folder.name, say)

    def context(self):
        return torch.autocast("cpu", dtype=self.autocast) if self.autocast else contextlib.nullcontext()

    def trained(self, name):
        return self.parameters[name].requires_grad

    def pass_of(self, train):
        """The calls of a forward in train or eval mode, as the manifest has them."""
        captured = capture(self.source, train, self.dynamic, self.lengths_vary)
        self.batch_symbol = next(iter(captured.fields)).meta["val"].shape[0].node.expr
        captured.trained = self.trained
        captured.unsaved = {n for n, _ in self.source.model.named_buffers()} - self.source.model.state_dict().keys()
        for name, tensor in captured.constants.items():
            self.constants[f"{'train' if train else 'eval'}.{name}"] = tensor
        segments = cut(captured, self.blocks)
        values = {node: node.meta["val"] for node in captured.fields}
        numbers = {node: i for i, node in enumerate(captured.fields)}
        calls = []
        for i, segment in enumerate(segments):
            inputs = [self.example(captured, kind, node, values, train) for kind, node in segment.arguments]
            number = self.compiled(segment, inputs, train, f"{'train' if train else 'eval'} {i + 1}/{len(segments)}" + (
                f" {segment.block}" if segment.block else ""))
            for node, like in zip(segment.results, self.graphs[number]["values"]):
                values[node] = fresh(node.meta["val"], like.dtype, like.requires_grad and train)
                numbers[node] = len(numbers)
            calls.append({"graph": number, "block": segment.block, "arguments": [self.argument(captured, kind, node, numbers, train)
                                                                                 for kind, node in segment.arguments],
                          "results": [numbers[node] for node in segment.results]})
        missing = [part for part, node in zip(captured.parts, captured.outputs) if node not in numbers]
        if missing:
            raise Refusal(f"the loss returns a {missing[0]} that does not depend on the batch")
        return {"calls": calls, "loss": {part: numbers[node] for part, node in zip(captured.parts, captured.outputs)}, "chain": chain(segments)}

    def example(self, captured, kind, node, values, train):
        value = values[node] if kind == "value" else node.meta["val"]
        wanted = kind == "value" and value.requires_grad or kind == "tensor" and captured.tensors[node][0] == "parameter" and self.trained(
            captured.tensors[node][1])
        return fresh(value, value.dtype, wanted and train)

    def argument(self, captured, kind, node, numbers, train):
        if kind == "value":
            return {"value": numbers[node]}
        if kind == "mask":
            return {"mask": node.args[1]}
        tensor_kind, name = captured.tensors[node]
        return {"constant": f"{'train' if train else 'eval'}.{name}"} if tensor_kind == "constant" else {"tensor": self.tied[name]}

    def compiled(self, segment, inputs, train, label):
        """The number of the graph that does what the segment does; compiles it if there is none."""
        metas = [(i.dtype, tuple(map(str, i.shape)), tuple(map(str, i.stride()))) for i in inputs]
        keys = [f"{segment.key}\n{metas}\n{[bool(i.requires_grad) for i in inputs]}", f"{segment.key}\n{metas}"]
        key = keys[0] if train else keys[1]
        if key in self.places:
            return self.places[key]
        if train:
            with detect_fake_mode(inputs), enable_python_dispatcher(), self.context():
                differentiable = any(o.requires_grad for o in segment.module(*inputs))
        try:
            if train and differentiable:
                graphs = joint.forward_and_backward(segment, inputs, self.budget, self.context)
            else:
                with self.context():
                    graphs = joint.forward_only(segment, inputs)
        except Refusal:
            raise
        except Exception as error:  # of AOTAutograd, of no one type
            raise Refusal(f"PyTorch cannot differentiate {label} ahead of time: {first_line(error)}{users_line(error)}") from error
        sizes = next((s.node.shape_env.replacements for i in inputs for s in i.shape if isinstance(s, torch.SymInt)), {})
        fixed = [symbol for symbol, value in sizes.items() if value.is_number]
        if self.batch_symbol in fixed:
            raise Refusal(f"compiling {label} made the number of samples a constant: the model works for batches of this size only")
        if fixed:
            raise FixedLength
        number = len(self.graphs)
        self.places[keys[0]] = number
        self.places.setdefault(keys[1], number)
        self.say(f"{label}: graph {number}, forward" + (" and backward" if graphs.backward is not None else ""))
        self.compiling.start(f"{self.round}{number}.forward", graphs.forward, graphs.inputs)
        if graphs.backward is not None:
            self.compiling.start(f"{self.round}{number}.backward", graphs.backward, graphs.backward_inputs)
        outputs = [fresh(value, value.dtype, i in graphs.tangents) for i, value in enumerate(graphs.outputs)]
        self.graphs.append({"values": outputs, "entry": {
            "inputs": [described(i) for i in graphs.inputs], "outputs": [described(o) for o in graphs.outputs],
            "writes": [place for _, place in graphs.writes], "backward": graphs.backward is not None,
            "saved": [[*place, *([described(value)["order"]] if place[0] == "output" else [])]
                      for place, value in zip(graphs.saved, graphs.backward_inputs)],
            "tangents": graphs.tangents, "gradients": graphs.gradients}})
        return number

    def manifest(self):
        model = self.source.model
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        training = model.training
        try:
            passes = {"train": self.pass_of(True), "eval": self.pass_of(False)}
        except FixedLength:
            self.say("the length of sequences becomes a constant while the model is compiled: it is that of the example batch")
            self.lengths_vary = False
            self.compiling.stop()
            self.graphs, self.places, self.round = [], {}, "again."
            passes = {"train": self.pass_of(True), "eval": self.pass_of(False)}
        model.train(training)
        persistent = model.state_dict().keys()
        tensors = []
        for kind, named in (("parameter", model.named_parameters(remove_duplicate=False)), ("buffer", model.named_buffers(remove_duplicate=False))):
            for name, tensor in named:
                entry = {"name": name, "kind": kind, "dtype": model_file.SAFETENSORS_TYPES[tensor.dtype], "shape": list(tensor.shape)}
                if kind == "parameter":
                    entry["trained"] = tensor.requires_grad
                if kind == "buffer":
                    entry["saved"] = name in persistent
                if self.tied[name] != name:
                    entry["tied"] = self.tied[name]
                tensors.append(entry)
        fields = [{"name": name, "dtype": model_file.SAFETENSORS_TYPES[t.dtype]} for name, t in self.source.fields.items()]
        values = {n: t for n, t in [*model.named_parameters(), *model.named_buffers()] if self.tied[n] == n}
        self.compiling.wait()
        self.sections = {name.removeprefix(self.round): path.read_bytes() for name, path in sorted(self.compiling.objects.items())
                         if name.startswith(self.round)}
        self.sections["values"] = model_file.safetensors({**values, **{f"constant:{n}": t for n, t in self.constants.items()}})
        return {"format": 1, "torch": torch.__version__.split("+")[0], "device": "cpu", "instruction_set": shared_object.instruction_set(),
                "autocast": str(self.autocast).removeprefix("torch.") if self.autocast else None, "model": type(model).__name__,
                "fields": fields, "tensors": tensors, "blocks": [{"path": p, "type": t} for p, t in self.blocks.items()],
                "graphs": [g["entry"] for g in self.graphs], "passes": passes}


def described(value):
    """dtype, sizes (a number, or a product of symbols with a number, or null) and the order of the dimensions in memory, slowest first."""
    sizes = []
    for size in value.shape:
        if isinstance(size, int):
            sizes.append(size)
            continue
        expression = size.node.expr
        if expression.is_Integer:
            sizes.append(int(expression))
            continue
        factors = [expression] if not expression.is_Mul else list(expression.args)
        if all(f.is_Symbol or f.is_Integer for f in factors):
            number = 1
            for f in factors:
                number *= int(f) if f.is_Integer else 1
            sizes.append([number, *(str(f) for f in factors if f.is_Symbol)])
        else:
            sizes.append(None)
    strides, lengths = [hint(s) for s in value.stride()], [hint(s) for s in value.shape]
    order = list(range(len(strides)))
    if not contiguous(value):
        order.sort(key=lambda d: (-strides[d], -lengths[d]))
    step = 1
    for d in reversed(order):
        if lengths[d] != 1 and strides[d] != step:
            raise Refusal(f"a tensor of the shape {tuple(value.shape)} with the strides {tuple(value.stride())} has gaps; make it contiguous()")
        step *= lengths[d]
    return {"dtype": model_file.SAFETENSORS_TYPES[value.dtype], "sizes": sizes, "order": order}


def build(source, output, **options):
    """Writes the file; returns a line about it."""
    if torch.__version__.split("+")[0] != TORCH_VERSION:
        raise Refusal(f"this is torch {torch.__version__}, and models are compiled with {TORCH_VERSION}: pip install torch=={TORCH_VERSION}")
    output = pathlib.Path(output)
    if not output.parent.is_dir():
        raise Refusal(f"there is no folder {output.parent} for -o {output}")
    shared_object.compiler()
    begin = time.monotonic()
    building = Build(source, output.parent, **options)
    try:
        manifest = building.manifest()
    finally:
        building.compiling.stop()
        building.folder.cleanup()
    model_file.write(output, manifest, building.sections)
    blocks = len(building.blocks)
    calls = len(manifest["passes"]["train"]["calls"])
    return (f"{output}: {manifest['model']}, {sum(p.numel() for p in source.model.parameters())} parameters, {blocks} blocks, "
            f"{len(building.graphs)} graphs for {calls} calls, {os.path.getsize(output) / 1e6:.1f} MB, {time.monotonic() - begin:.0f} s")
