"""A captured graph cut into segments: each call of a block is one, and so is what lies between two of them. Equal segments are one graph."""
import collections
import dataclasses
import operator

import torch
from torch import fx

from .capture import VIEWS, aten, base_of, dropout_mask, writes
from .fakes import contiguous, contiguous_like
from .refusal import Refusal, at, line_of

BLOCKS_OF_TORCH = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)


@dataclasses.dataclass
class Segment:
    block: str | None  # path of the module; None: what lies between blocks
    nodes: list
    module: fx.GraphModule = None
    arguments: list = dataclasses.field(default_factory=list)  # of the graph's placeholders: ("value", node) or ("tensor", node) or ("mask", node)
    results: list = dataclasses.field(default_factory=list)  # nodes of the whole graph
    key: str = ""  # the same for equal graphs


def find_blocks(model, wanted):
    """path -> class name. `wanted`: class names; empty: the classes that stand side by side at least twice; ["none"]: none."""
    if list(wanted) == ["none"]:
        return {}
    blocks = {}

    def walk(module, path):
        children = list(module.named_children())
        counts = collections.Counter(type(child) for _, child in children if is_candidate(child))
        for name, child in children:
            below = f"{path}.{name}" if path else name
            chosen = type(child).__name__ in wanted if wanted else counts[type(child)] >= 2
            if chosen:
                blocks[below] = type(child).__name__
            else:
                walk(child, below)

    walk(model, "")
    missing = [name for name in wanted if name not in blocks.values()]
    if missing:
        classes = sorted({type(m).__name__ for m in model.modules() if next(m.children(), None) is not None})
        raise Refusal(f"--blocks {missing[0]}: no module of the model has this class; it has: {', '.join(classes)}, or none")
    return blocks


def is_candidate(module):
    if type(module).__module__.startswith("torch.nn") and not isinstance(module, BLOCKS_OF_TORCH):
        return False
    return next(module.parameters(), None) is not None


def block_call(node, blocks):
    """(path, call) of the outermost block that the node was made in, or None."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        path = path.removeprefix("model").removeprefix(".").split("@")[0]
        if path in blocks:
            return path, key
    return None


def is_size(node):
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def cut(capture, blocks):
    """The Segments in the order of the graph."""
    segments, current, used = [], object(), set()
    for node in capture.graph.nodes:
        if node.op != "call_function" or is_size(node):
            continue
        if node.target is operator.getitem and segments and node.args[0] in segments[-1].nodes:
            call = current
        else:
            call = block_call(node, blocks)
        if call != current or not segments:
            segments.append(Segment(call[0] if call else None, []))
            current = call
        segments[-1].nodes.append(node)
    for segment in segments:
        used.add(segment.block)
    for path, name in blocks.items():
        if path not in used:
            raise Refusal(f"the block {path} ({name}) is not called as a module; call it as self.layer(x), or name other classes by --blocks")
    merge_trivial(segments)
    place = {node: i for i, segment in enumerate(segments) for node in segment.nodes}
    check_writes(capture, segments, place)
    for i, segment in enumerate(segments):
        build(capture, segments, place, i, segment)
    return [segment for segment in segments if segment.results or writes_buffers(segment)]


def writes_buffers(segment):
    return any(writes(node) for node in segment.nodes)


def merge_trivial(segments):
    """Asserts that export leaves at the start, and the like, are no segments."""
    for segment in segments:
        segment.nodes = [n for n in segment.nodes if "assert" not in str(n.target)]
    segments[:] = [s for s in segments if s.nodes]


def check_writes(capture, segments, place):
    for node, i in place.items():
        for written in writes(node):
            base = base_of(written)
            if base in capture.tensors:
                kind, name = capture.tensors[base]
                if kind == "buffer" and name in capture.unsaved:
                    raise Refusal(f"forward writes to the buffer {name}{at(node)}, which is not saved (persistent=False); let it be saved")
                if kind != "buffer":
                    raise Refusal(f"forward writes to {name}{at(node)}, which is a {kind}; it may write to buffers only")
            elif base in capture.fields:
                raise Refusal(f"forward writes to the batch's {capture.fields[base]}{at(node)}; write to a clone")
            elif place.get(base) != i:
                raise Refusal(f"a tensor of another block is changed in place{at(node)}; use the operator that returns a new one")


def build(capture, segments, place, index, segment):
    """Its GraphModule: placeholders are values of other segments, tensors of the model, masks."""
    inside, graph, copies = set(segment.nodes), fx.Graph(), {}
    outside, masks = [], []

    def collect(node):  # tensors that come from elsewhere, in the order of their use
        for operand in node.all_input_nodes:
            if is_size(operand):
                if operand.target is not aten.sym_size.int:
                    collect(operand)
            elif operand not in inside and operand not in outside:
                outside.append(operand)

    for node in segment.nodes:
        if node.target is dropout_mask:
            masks.append(node)
        else:
            collect(node)
    outside.sort(key=lambda n: n in capture.tensors)  # values first; stable

    def placeholder(node, kind):
        new = graph.placeholder(f"{kind}{len(segment.arguments)}")
        new.meta["val"] = node.meta["val"]
        copies[node] = new
        segment.arguments.append((kind, node))

    sizes_missing = [operand for node in segment.nodes for operand in node.all_input_nodes if is_size(operand)]
    for root in base_sizes(sizes_missing):
        if root.args[0] not in inside and root.args[0] not in outside and not same_size(root, [n for n in outside if n not in capture.tensors]):
            outside.insert(0, root.args[0])
    for node in outside:
        placeholder(node, "tensor" if node in capture.tensors else "value")
    for node in masks:
        placeholder(node, "mask")

    def copy_size(node):
        if node in copies:
            return copies[node]
        if node.target is aten.sym_size.int:
            source = node.args[0]
            if source in copies:
                found = copies[source], node.args[1]
            else:
                found = same_size(node, [n for n in outside if n not in capture.tensors])
                found = copies[found[0]], found[1]
            new = graph.call_function(aten.sym_size.int, found)
            new.meta["val"] = node.meta["val"]
        else:
            new = graph.node_copy(node, lambda operand: copy_size(operand))
        copies[node] = new
        return new

    for node in segment.nodes:
        if node.target is dropout_mask:
            continue
        for operand in node.all_input_nodes:
            if is_size(operand):
                copy_size(operand)
        copies[node] = graph.node_copy(node, lambda operand: copies[operand])
    later = set()
    for other in segments[index + 1:]:
        for node in other.nodes:
            later.update(needed(node, capture))
    later.update(capture.outputs)
    outputs = []
    seen_bases = set()
    for node in segment.nodes:
        if node in later and node.target is not dropout_mask and isinstance(node.meta.get("val"), torch.Tensor):
            new, base = copies[node], base_of(node)
            if node.target in VIEWS and (base not in inside or base in later or base in seen_bases or not contiguous(node.meta["val"])):
                new = graph.call_function(aten.clone.default, (new,), {"memory_format": torch.contiguous_format})
                new.meta["val"] = contiguous_like(node.meta["val"])
                node.meta["val"] = new.meta["val"]
            seen_bases.add(base)
            segment.results.append(node)
            outputs.append(new)
    graph.output(tuple(outputs))
    graph.lint()
    segment.module = fx.GraphModule(torch.nn.Module(), graph)
    segment.key = key_of(capture, segment)


def needed(node, capture):
    """What a node reads, through sizes."""
    found = []
    for operand in node.all_input_nodes:
        if is_size(operand):
            found += [operand.args[0]] if operand.target is aten.sym_size.int else needed(operand, capture)
        else:
            found.append(operand)
    return found


def base_sizes(nodes):
    """The sym_size nodes that sizes are computed from."""
    roots, seen, stack = [], set(), list(nodes)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.target is aten.sym_size.int:
            roots.append(node)
        else:
            stack += [n for n in node.all_input_nodes if is_size(n)]
    return roots


def same_size(node, values):
    """(value, dimension) of a tensor whose size is that of the sym_size node, or None."""
    wanted = node.meta["val"]
    expression = getattr(getattr(wanted, "node", None), "expr", wanted)
    for value in values:
        for dim, size in enumerate(value.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == expression:
                return value, dim
    return None


def key_of(capture, segment):
    """Equal for segments that compute the same from inputs of the same shapes and types, with other tensors."""
    names, lines = {}, []
    for node in segment.module.graph.nodes:
        names[node] = f"%{len(names)}"
        value = node.meta.get("val")
        if node.op == "placeholder":
            kind, of = segment.arguments[len(names) - 1]
            what = ()
            if kind == "tensor":
                tensor_kind, name = capture.tensors[of]
                what = (tensor_kind, capture.trained(name) if tensor_kind == "parameter" else False)
            elif kind == "mask":
                what = (of.args[1], tuple(of.args[2]))
            lines.append(f"{kind} {what} {tuple(value.shape)} {value.stride()} {value.dtype}")
        else:
            args = fx.node.map_arg((node.args, node.kwargs), lambda n: names[n])
            lines.append(f"{node.op} {node.target} {args}")
    return "\n".join(lines)


def chain(segments):
    """Empty, or why a pipeline cannot cut between the blocks: a value of an earlier block goes around a later one."""
    last, depth = -1, {}
    for i, segment in enumerate(segments):
        for kind, node in segment.arguments:
            if kind != "value" or depth.get(node, -1) < 0:
                continue
            if depth[node] != last:
                return f"a value of the block {segments[depth[node]].block} is used after the block {segments[last].block}" + (
                    f" ({line_of(segment.nodes[0])})" if line_of(segment.nodes[0]) else "")
        before = max((depth.get(node, -1) for kind, node in segment.arguments if kind == "value"), default=-1)
        if segment.block is not None:
            if len(segment.results) != 1:
                return f"the block {segment.block} returns {len(segment.results)} tensors that are used"
            last = before = i
        for node in segment.results:
            depth[node] = before
    paths = [s.block for s in segments if s.block is not None]
    for path in paths:
        if paths.count(path) > 1:
            return f"the block {path} is called {paths.count(path)} times"
    return ""
