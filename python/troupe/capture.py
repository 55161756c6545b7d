"""A model and its loss as one graph of PyTorch's operators, with the module that each operator belongs to.

torch.export without its symbolic interpreter runs the model's own Python once, with tensors that have no values (Reed et al., "torch.fx", 2022,
and PyTorch's documentation of torch.export). What depends on a tensor's values cannot be captured, and is refused with its line.
"""
import contextlib
import dataclasses
import io
import operator
import pathlib
import re
import traceback

import torch
from torch import fx
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .refusal import Refusal, at
from .source import loss_parts

OWN_FOLDER = str(pathlib.Path(__file__).parent)
aten = torch.ops.aten
WRITES_BUFFERS = {aten.batch_norm.default, aten.instance_norm.default}  # by their schema they write nothing


@dataclasses.dataclass
class Capture:
    graph: fx.Graph
    tensors: dict  # placeholder -> ("parameter" | "buffer" | "constant", name)
    constants: dict  # name -> tensor
    fields: dict  # placeholder -> name of the batch's field
    outputs: list  # nodes: the loss, and count and correct if they are there
    parts: tuple  # names of the outputs


class Whole(torch.nn.Module):
    def __init__(self, source, note):
        super().__init__()
        self.model = source.model
        self.source = source
        self.note = note  # a function, since export puts back what forward assigns to a module

    def forward(self, *tensors):
        value, count, correct = loss_parts(self.source.loss(self.model, self.source.rebuild(tensors)), self.model.training)
        named = {"loss": value, "count": count, "correct": correct}
        self.note([name for name, part in named.items() if part is not None])
        return tuple(part for part in named.values() if part is not None)


def first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def users_line(error):
    """The innermost line of the user's own files in the traces of an exception and its causes."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if is_users(frame.filename) and frame.line:
                return f" at {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} ({frame.line.strip()})"
        for path, line, code in reversed(re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.+)', str(error))):
            if is_users(path):
                return f" at {path.rsplit('/', 1)[-1]}:{line} ({code.strip()})"
        error = error.__cause__ or error.__context__
    return ""


def is_users(path):
    return "/torch/" not in path and OWN_FOLDER not in path and path.endswith(".py") and not path.startswith("/usr/lib/python")


def sizes_that_vary(source, dynamic, lengths_vary):
    """For torch.export: the batch's first dimension; of fields of whole numbers the second, too; and what the command line names."""
    batch = Dim("batch", min=2)
    shapes = []
    for name, tensor in source.fields.items():
        dims = {0: batch}
        if lengths_vary and tensor.dim() > 1 and not tensor.is_floating_point() and tensor.dtype != torch.uint8:
            dims[1] = Dim.AUTO
        for field, dim in dynamic:
            if field == name and lengths_vary:
                if not 0 < dim < tensor.dim():
                    raise Refusal(f"--dynamic {field}:{dim}: {name} has the dimensions 0 to {tensor.dim() - 1}, and 0 varies anyway")
                dims[dim] = Dim.AUTO
        shapes.append(dims)
    for field, _ in dynamic:
        if field not in source.fields:
            raise Refusal(f"--dynamic {field}: the batch has no field of this name; it has {', '.join(source.fields)}")
    return (tuple(shapes),)


def capture(source, train, dynamic=(), lengths_vary=True):
    """The Capture of the model in train or eval mode."""
    source.model.train(train)
    parts = []
    whole = Whole(source, lambda names: parts.__setitem__(slice(None), names))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints the graph of what it gives up
            exported = torch.export.export(whole, tuple(source.fields.values()), dynamic_shapes=sizes_that_vary(source, dynamic, lengths_vary), strict=False)
    except Refusal:
        raise
    except Exception as error:  # torch.export has no one type for what it cannot do
        text = first_line(error)
        if "batch" in str(error) and ("specialized" in str(error) or "Constraints violated" in str(error)):
            text = "the model works for this number of samples only: a size of the batch became a constant"
        raise Refusal(f"the model cannot be captured: {text}{users_line(error)}") from error
    signature = exported.graph_signature
    kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
    of_input = {spec.arg.name: spec for spec in signature.input_specs}
    names = iter(source.fields)
    result = Capture(exported.graph, {}, {}, {}, [], tuple(parts))
    for node in exported.graph.find_nodes(op="placeholder"):
        spec = of_input[node.name]
        kind = kinds.get(spec.kind.name)
        if spec.kind.name == "USER_INPUT":
            result.fields[node] = next(names)
        elif kind is None:
            raise Refusal(f"the model has an input of the kind {spec.kind.name}, which is not supported")
        else:
            name = spec.target.removeprefix("model.")
            if kind == "constant":
                result.constants[name] = exported.constants[spec.target].detach()
            result.tensors[node] = (kind, name)
    result.outputs = list(exported.graph.find_nodes(op="output")[0].args[0])
    inline_no_grad(exported.graph_module)
    for node in exported.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise Refusal(f"{node.target} is not supported{at(node)}; autocast is asked for by --autocast, and recomputing by --recompute")
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.namespace not in ("aten", "prims"):
            raise Refusal(f"the operator {node.target} is not PyTorch's own{at(node)}; a model is compiled from those of PyTorch")
        if torch.Tag.data_dependent_output in node.target.tags or free_unbacked_symbols(node.meta.get("val")):
            raise Refusal(f"{node.target} depends on a tensor's values{at(node)}; keep to tensors of sizes that follow from the batch's")
    remove_writes(result.graph)
    replace_dropout(result.graph)
    refuse_random(result.graph)
    result.graph.eliminate_dead_code(lambda node: is_impure(node))
    return result


def inline_no_grad(module):
    """What runs under torch.no_grad or enable_grad, export puts into a graph for itself: back into the whole, its results detached under no_grad."""
    graph = module.graph
    for node in graph.nodes:  # grows while it is walked
        if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            continue
        enabled, body = node.args[0], getattr(module, node.args[1].target)
        for inner in body.graph.find_nodes(op="get_attr"):
            name = f"{node.name}_{inner.target}"
            setattr(module, name, getattr(body, inner.target))
            inner.target = name
        with graph.inserting_before(node):
            results = graph.graph_copy(body.graph, dict(zip(body.graph.find_nodes(op="placeholder"), node.args[2:])))
        for user in list(node.users):
            result = results[user.args[1]]
            if not enabled and isinstance(result.meta["val"], torch.Tensor):
                with graph.inserting_before(user):
                    detached = graph.call_function(aten.detach.default, (result,))
                detached.meta.update(result.meta)
                result = detached
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        attribute = node.args[1]
        graph.erase_node(node)
        if not attribute.users:
            graph.erase_node(attribute)
        return inline_no_grad(module)
    graph.lint()
    return None


def is_impure(node):
    if node.op in ("placeholder", "output"):
        return True
    return node.op == "call_function" and bool(writes(node) or "assert" in str(node.target))


def writes(node):
    """The arguments, as nodes, that an operator writes to."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    if node.target in WRITES_BUFFERS:
        training = node.args[5]
        return [a for a in node.args[3:5] if isinstance(a, fx.Node)] if training else []
    if not node.target._schema.is_mutable:
        return []
    written = [a for a, spec in zip(node.args, node.target._schema.arguments) if spec.alias_info is not None and spec.alias_info.is_write]
    return [a for a in written if isinstance(a, fx.Node)]


# ------------------------------------------------------------- random numbers

def mask_dropped(graph, x, p, sizes):
    """In the graph, at its insertion point: x times a mask of these sizes over 1 - p. The mask, a call of dropout_mask, becomes an input."""
    mask = graph.call_function(dropout_mask, (x, p, sizes))
    value = x.meta["val"]
    shape = [value.shape[i] if s < 0 else s for i, s in enumerate(sizes)]
    mask.meta["val"] = value.new_empty(shape, dtype=torch.bool)
    number = graph.call_function(aten.to.dtype, (mask, value.dtype))
    number.meta["val"] = value.new_empty(shape)
    factor = graph.call_function(aten.mul.Scalar, (number, 1 / (1 - p) if p < 1 else 1.0))
    factor.meta["val"] = value.new_empty(shape)
    kept = graph.call_function(aten.mul.Tensor, (x, factor))
    kept.meta["val"] = value
    return kept


def dropout_mask(x, p, sizes):
    """Stands in a graph for a mask that Troupe draws, True where x is kept; a size of -1 is that of x in this dimension."""
    raise RuntimeError("a mask is an input")


def replace_dropout(graph):
    """Dropout's masks become inputs: Troupe draws them by (seed, step, micro-batch, shard, layer), so that a run can be repeated."""
    by_channel = {aten.dropout.default: False, aten.feature_dropout.default: True}
    for node in list(graph.nodes):
        if node.target in by_channel:
            x, p, training = node.args
            new = x
            if training and p > 0:
                rank = x.meta["val"].dim()
                sizes = [-1, -1] + [1] * (rank - 2) if by_channel[node.target] else [-1] * rank
                with graph.inserting_before(node):
                    new = mask_dropped(graph, x, p, sizes)
                give_origin(node, new)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        elif node.target is aten.scaled_dot_product_attention.default and (
                len(node.args) > 4 and node.args[4] > 0 or node.args[0].meta["val"].dtype == torch.float64):
            expand_attention(graph, node)
    graph.lint()


def give_origin(old, last):
    """The new nodes up to `last` belong to the module and the line of the one that they replace."""
    node = last
    while "nn_module_stack" not in node.meta and node.op == "call_function":
        for key in ("nn_module_stack", "stack_trace"):
            if key in old.meta:
                node.meta[key] = old.meta[key]
        node = node.prev


VIEWS = {aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default,
         aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.default, aten.squeeze.dims, aten.select.int, aten.slice.Tensor, aten.flatten.using_ints,
         aten.unflatten.int, aten.detach.default, aten.alias.default, aten.narrow.default, aten.view_as.default, aten.expand_as.default,
         aten.movedim.int, aten.numpy_T.default, aten.contiguous.default, aten.to.dtype, aten.split.Tensor, aten.chunk.default, aten.unbind.int,
         aten.split_with_sizes.default, aten.diagonal.default, aten.as_strided.default, aten.swapaxes.default, operator.getitem}


def base_of(node):
    """The node whose memory this one is: through views, and through operators that write to their first argument and return it."""
    while node.op == "call_function" and (node.target in VIEWS or node.args and node.args[0] in writes(node)):
        node = node.args[0]
    return node


def remove_writes(graph):
    """relu_(x) becomes relu(x), and what reads x later reads that: where x has no view. AOTAutograd does so for the rest, inside of a block."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        written = writes(node)
        if len(written) != 1 or written[0].op != "call_function" or written[0] is not node.args[0] or node.target in WRITES_BUFFERS:
            continue
        x = written[0]
        if base_of(x) is not x or any(user.target in VIEWS for user in x.users if user is not node):
            continue
        packet, overload = node.target._schema.name.split("::")[1], node.target._overloadname
        if not packet.endswith("_") or not hasattr(aten, packet[:-1]) or not hasattr(getattr(aten, packet[:-1]), overload):
            continue
        node.target = getattr(getattr(aten, packet[:-1]), overload)
        for user in [u for u in x.users if place[u] > place[node]]:
            user.replace_input_with(x, node)


def expand_attention(graph, node):
    """Attention by its definition in PyTorch's documentation: the fused kernels draw their own numbers for dropout, and in float64 what
    PyTorch 2.11 says of the CPU kernel's second result is another type than it returns."""
    query, key, value = node.args[:3]
    bias = node.args[3] if len(node.args) > 3 else None
    p, causal = node.args[4] if len(node.args) > 4 else 0.0, len(node.args) > 5 and node.args[5]
    scale = node.kwargs.get("scale")
    q, k = query.meta["val"], key.meta["val"]
    scale = scale if scale is not None else 1 / float(q.shape[-1]) ** 0.5
    with graph.inserting_before(node):
        def call(target, *args, like=None, shape=None, dtype=None):
            new = graph.call_function(target, args)
            new.meta["val"] = like if like is not None else q.new_empty(shape, dtype=dtype or q.dtype)
            return new
        if node.kwargs.get("enable_gqa") and q.shape[-3] != k.shape[-3]:
            times = q.shape[-3] // k.shape[-3]
            key, value = (call(aten.repeat_interleave.self_int, x, times, -3, like=x.meta["val"].repeat_interleave(times, -3)) for x in (key, value))
            k = key.meta["val"]
        turned = call(aten.transpose.int, key, -2, -1, like=k.transpose(-2, -1))
        shape = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]) + (q.shape[-2], k.shape[-2])
        scores = call(aten.matmul.default, query, turned, shape=shape)
        scores = call(aten.mul.Scalar, scores, scale, shape=shape)
        if causal:
            rows = call(aten.sym_size.int, query, q.dim() - 2, like=q.shape[-2])
            columns = call(aten.sym_size.int, key, k.dim() - 2, like=k.shape[-2])
            ones = call(aten.ones.default, [rows, columns], shape=shape[-2:], dtype=torch.bool)
            ones.kwargs = {"dtype": torch.bool}
            upper = call(aten.triu.default, ones, 1, shape=shape[-2:], dtype=torch.bool)
            scores = call(aten.masked_fill.Scalar, scores, upper, float("-inf"), shape=shape)
        if bias is not None:
            if bias.meta["val"].dtype == torch.bool:
                dropped = call(aten.logical_not.default, bias, like=bias.meta["val"])
                scores = call(aten.masked_fill.Scalar, scores, dropped, float("-inf"), shape=shape)
            else:
                scores = call(aten.add.Tensor, scores, bias, shape=shape)
        weights = call(aten.softmax.int, scores, -1, shape=shape)
        if p > 0:
            weights = mask_dropped(graph, weights, p, [-1] * len(shape))
        result = call(aten.matmul.default, weights, value, like=node.meta["val"])
        # Laid out as the fused kernel's result, since what was traced behind it may be a view of that.
        strides = [s if isinstance(s, int) else s.node.hint for s in node.meta["val"].stride()]
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        if order != list(range(len(order))):
            result = call(aten.permute.default, result, order, like=node.meta["val"].permute(order))
            result = call(aten.clone.default, result, like=node.meta["val"].permute(order))
            result.kwargs = {"memory_format": torch.contiguous_format}
            back = [order.index(d) for d in range(len(order))]
            result = call(aten.permute.default, result, back, like=node.meta["val"])
    give_origin(node, result)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def refuse_random(graph):
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            if node.target is aten.scaled_dot_product_attention.default:
                continue  # without dropout by now
            if node.target in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input) and (node.args[5] == 0 or not node.args[6]):
                continue
            raise Refusal(f"{node.target} draws random numbers{at(node)}; a compiled model draws dropout masks only: make them part of the data, "
                          "or use torch.nn.functional.dropout")
