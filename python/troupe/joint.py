"""A segment's forward and its backward as two graphs, by AOTAutograd; parameters are inputs of both, so that a strategy owns their memory.

The steps are private functions of PyTorch 2.11 (torch._functorch.aot_autograd), which is why the command asks for exactly this version.
"""
import contextlib
import dataclasses
import operator
import os

import sympy
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import (aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors, aot_export_module,
                                           make_boxed_func)
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V

from .fakes import dense
from .refusal import Refusal

# A pass of torch.compile's own: it expects sizes as inputs of the graph, which tensors alone are here.
os.environ["TENSORIFY_PYTHON_SCALARS"] = "0"

aten = torch.ops.aten
VIEWS_OF_INPUTS = {aten.permute.default, aten.view.default, aten.t.default, aten.transpose.int, aten.expand.default, aten.unsqueeze.default,
                   aten.squeeze.dim, aten.squeeze.dims, aten.reshape.default, aten._unsafe_view.default, aten.alias.default, aten.detach.default}


@dataclasses.dataclass
class Graphs:
    """forward(inputs) -> outputs, then activations; backward(saved, tangents) -> gradients."""
    forward: fx.GraphModule
    inputs: list  # example values, one per placeholder
    outputs: list  # example values of the segment's outputs
    writes: list  # (output, input): what forward writes back; these outputs come first
    backward: fx.GraphModule = None
    backward_inputs: list = dataclasses.field(default_factory=list)
    saved: list = dataclasses.field(default_factory=list)  # ("input" | "output", place), in backward's order
    tangents: list = dataclasses.field(default_factory=list)  # of the segment's outputs, in backward's order
    gradients: list = dataclasses.field(default_factory=list)  # inputs, in the order of backward's outputs


def outputs_of(graph_module):
    return list(graph_module.graph.find_nodes(op="output")[0].args[0])


def set_outputs(graph_module, outputs):
    graph_module.graph.find_nodes(op="output")[0].args = (tuple(outputs),)
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.lint()
    graph_module.recompile()


def placeholders_of(graph_module):
    return list(graph_module.graph.find_nodes(op="placeholder"))


def bias_apart(gradient, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted):
    """A convolution's backward whose bias gradient is a sum: the C call of LibTorch 2.11 reads the bias's sizes from memory that it has freed."""
    if bias_sizes is None and not wanted[2]:
        return NotImplemented
    of_x, of_weight, _ = aten.convolution_backward(gradient, x, weight, None, stride, padding, dilation, transposed, output_padding, groups,
                                                   [wanted[0], wanted[1], False])
    return of_x, of_weight, gradient.sum([0, *range(2, gradient.dim())]) if wanted[2] else None


def decompositions():
    return {**select_decomp_table(), aten.convolution_backward.default: bias_apart}


def forward_only(segment, inputs):
    """Graphs without a backward."""
    with torch.no_grad():
        module, signature = aot_export_module(segment.module, tuple(i.detach() for i in inputs), trace_joint=False, decompositions=decompositions())
    names = [node.name for node in placeholders_of(module)]
    values = [o.meta["val"] for o in outputs_of(module)]
    writes = [(i, names.index(signature.user_inputs_to_mutate[spec]))
              for i, spec in enumerate(n.name for n in outputs_of(module)) if spec in signature.user_inputs_to_mutate]
    return Graphs(module, [n.meta["val"] for n in placeholders_of(module)], values[len(writes):], writes)


def partition(joint, inputs, **options):
    with V.set_fake_mode(detect_fake_mode([n.meta.get("val") for n in placeholders_of(joint)])):
        joint_graph_passes(joint)
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def forward_and_backward(segment, inputs, budget, context):
    """Graphs of training. `budget` (0 to 1): how much of the activations is kept, the rest is computed again in backward."""
    found = {}

    def keep(which):
        def compiler(module, example):
            found[which] = module, list(example)
            return make_boxed_func(module.forward)
        return compiler

    with contextlib.ExitStack() as stack, torch._functorch.config.patch(activation_memory_budget=budget):
        with context():
            joint = aot_export_joint_with_descriptors(stack, segment.module, tuple(inputs), decompositions=decompositions())
        described = list(joint.graph_module.graph.find_nodes(op="output")[0].meta["desc"])
        aot_compile_joint_with_descriptors(joint, partition_fn=partition, fw_compiler=keep("forward"), bw_compiler=keep("backward"))
    forward, forward_inputs = found["forward"]
    backward, backward_inputs = found["backward"]
    move_views_of_inputs(forward, backward, forward_inputs, backward_inputs)
    take_sizes_from_tensors(forward, backward, forward_inputs, backward_inputs)

    into_backward = placeholders_of(backward)
    tangents = [n for n in into_backward if n.name.startswith("tangents")]
    saved_names = [n.name for n in into_backward if not n.name.startswith("tangents")]
    outputs = outputs_of(forward)
    real = len(outputs) - len(saved_names)
    result = Graphs(forward, [n.meta["val"] for n in placeholders_of(forward)], [], [], backward)
    order = []
    for i, what in enumerate(described[:real]):
        if isinstance(what, descriptors.InputMutationAOTOutput) and isinstance(what.mutated_input, descriptors.PlainAOTInput):
            result.writes.append((i, what.mutated_input.idx))
        elif isinstance(what, descriptors.PlainAOTOutput):
            order.append((i, what.idx))
        else:
            raise Refusal(f"AOTAutograd returns {type(what).__name__}, which is not supported; does forward return views of one another?")
    first = len(result.writes)
    if [i for i, _ in result.writes] != list(range(first)) or [k for _, k in order] != list(range(len(order))):
        raise Refusal("AOTAutograd returns the results in another order than this version of troupe knows")
    result.outputs = [o.meta["val"] for o in outputs[first:real]]
    names = {n.name: i for i, n in enumerate(placeholders_of(forward))}
    kept, place = outputs[:real], {}
    for o in outputs[real:]:
        if o.name in names:
            place[o.name] = ("input", names[o.name])
        else:
            place[o.name] = ("output", len(kept))
            kept.append(o)
    result.saved = [place[name] for name in saved_names]
    for node in into_backward:
        if place.get(node.name, ("input", 0))[0] == "output":
            node.meta["val"] = dense(node.meta["val"])
    result.backward_inputs = [n.meta["val"] for n in into_backward]
    plain = [what.output.idx for what in (n.meta["desc"] for n in tangents) if isinstance(what.output, descriptors.PlainAOTOutput)]
    if len(plain) != len(tangents):
        raise Refusal("a gradient flows through a buffer that forward writes to, which is not supported; write detached values")
    result.tangents = plain
    set_outputs(forward, kept)
    into = outputs_of(backward)
    result.gradients = [i for i, o in enumerate(into) if o is not None]
    set_outputs(backward, [o for o in into if o is not None])
    return result


def move_views_of_inputs(forward, backward, forward_inputs, backward_inputs):
    """A saved view of an input (a weight, transposed) becomes that input, saved; the view is made in backward. So the owner of the parameters
    may free them between the two, as FSDP does."""
    into = {n.name: n for n in placeholders_of(backward)}
    outputs = outputs_of(forward)
    for k, saved in enumerate(outputs):
        if not isinstance(saved, fx.Node) or saved.name not in into:
            continue
        views, node = [], saved
        while node.op == "call_function" and node.target in VIEWS_OF_INPUTS and not any(isinstance(a, fx.Node) for a in node.all_input_nodes[1:]):
            views.append(node)
            node = node.args[0]
        if node.op != "placeholder" or not views:
            continue
        old = into.pop(saved.name)
        place = placeholders_of(backward).index(old)
        source = into.get(node.name)
        if source is None:
            with backward.graph.inserting_before(old):
                source = into[node.name] = backward.graph.placeholder(node.name)
                source.meta.update(node.meta)
            backward_inputs[place] = forward_inputs[[p.name for p in placeholders_of(forward)].index(node.name)]
            outputs[k] = node
        else:  # the input itself is saved, too
            del backward_inputs[place]
            outputs[k] = None
        value, after = source, placeholders_of(backward)[-1]
        for view in reversed(views):
            with backward.graph.inserting_after(after):
                new = backward.graph.call_function(view.target, (value, *view.args[1:]), dict(view.kwargs))
                new.meta.update(view.meta)
            value = after = new
        old.replace_all_uses_with(value)
        backward.graph.erase_node(old)
    set_outputs(forward, [o for o in outputs if o is not None])
    backward.graph.lint()
    backward.recompile()


def take_sizes_from_tensors(forward, backward, forward_inputs, backward_inputs):
    """Sizes that forward saves for backward: backward computes them from its tensors' sizes."""
    sizes = [n for n in placeholders_of(backward) if isinstance(n.meta["val"], torch.SymInt)]
    if not sizes:
        return
    tensors = [n for n in placeholders_of(backward) if isinstance(n.meta["val"], torch.Tensor)]
    symbols = set().union(*(n.meta["val"].node.expr.free_symbols for n in sizes))
    where = {}
    for symbol in symbols:
        where[symbol] = next(((t, d) for t in tensors for d, s in enumerate(t.meta["val"].shape)
                              if isinstance(s, torch.SymInt) and s.node.expr == symbol), None)
        if where[symbol] is None:  # an input of forward has it: that one is saved, too
            source, d = next((p, d) for p in placeholders_of(forward) if isinstance(p.meta["val"], torch.Tensor)
                             for d, s in enumerate(p.meta["val"].shape) if isinstance(s, torch.SymInt) and s.node.expr == symbol)
            with backward.graph.inserting_before(placeholders_of(backward)[0]):
                new = backward.graph.placeholder(source.name)
                new.meta.update(source.meta)
            backward_inputs.insert(0, forward_inputs[placeholders_of(forward).index(source)])
            outputs = outputs_of(forward)
            into = {n.name for n in placeholders_of(backward)}
            first = next((i for i, o in enumerate(outputs) if isinstance(o, fx.Node) and o.name in into), len(outputs))
            outputs.insert(first, source)
            forward.graph.find_nodes(op="output")[0].args = (tuple(outputs),)
            tensors.append(new)
            where[symbol] = (new, d)
    last = placeholders_of(backward)[-1]
    shape_env = sizes[0].meta["val"].node.shape_env

    def emit(target, args, expression):
        nonlocal last
        with backward.graph.inserting_after(last):
            last = backward.graph.call_function(target, args)
        last.meta["val"] = shape_env.create_symintnode(expression, hint=None)
        return last

    known = {}

    def build(expression):
        if expression in known:
            return known[expression]
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            result = emit(aten.sym_size.int, where[expression], expression)
        elif expression.is_Add or expression.is_Mul:
            target = operator.add if expression.is_Add else operator.mul
            result, total = build(expression.args[0]), expression.args[0]
            for part in expression.args[1:]:
                total = total + part if expression.is_Add else total * part
                result = emit(target, (result, build(part)), total)
        elif expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            result = build(expression.base)
            for power in range(2, int(expression.exp) + 1):
                result = emit(operator.mul, (result, build(expression.base)), expression.base ** power)
        elif type(expression).__name__ in ("FloorDiv", "CleanDiv"):
            result = emit(operator.floordiv, tuple(build(a) for a in expression.args), expression)
        else:
            raise Refusal(f"backward needs the size {expression}, which is not a sum, product or quotient of the batch's sizes")
        known[expression] = result
        return result

    gone = set()
    for node in sizes:
        place = placeholders_of(backward).index(node)
        new = build(sympy.sympify(node.meta["val"].node.expr))
        node.replace_all_uses_with(new)
        gone.add(node.name)
        backward.graph.erase_node(node)
        del backward_inputs[place]
    outputs = outputs_of(forward)
    # Sizes that are also results of forward are none: results are tensors.
    set_outputs(forward, [o for o in outputs if not (isinstance(o, fx.Node) and o.name in gone)])
    backward.graph.lint()
    backward.recompile()
