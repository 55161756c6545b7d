"""Folders as Hugging Face has them: several safetensors files, an index, links into a cache. Which files are read is transformers' rule
(modeling_utils.py, _get_resolved_checkpoint_files): model.safetensors if it is there, else the files that the index lists, each whole."""

import json
import random

import numpy
import safetensors
import safetensors.numpy
from cases import Case

TOOL = f"safetensors {safetensors.__version__}, files chosen as transformers does"
ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


def part(number, count, stem="model"):
    return f"{stem}-{number:05}-of-{count:05}.safetensors"


def index_of(weight_map, **more):
    return json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map, **more}, indent=2).encode()


def case(name, files, links=None, words="", on_purpose=""):
    """`files` hold dicts of arrays, or bytes. `words`: of our refusal, where no rule says what is read."""
    links = links or {}
    data = {path: safetensors.numpy.save(content) if isinstance(content, dict) else content for path, content in files.items()}
    if words:
        return Case(name, data, {}, words, on_purpose, links=links)

    def content(path):
        return data[links[path].replace("../../", "", 1)] if path in links else data[path]

    top = {path.rsplit("/", 1)[-1]: path for path in [*data, *links] if path.startswith("snapshots/") or "/" not in path}
    index = next((name for name in sorted(top, reverse=True) if ".safetensors.index." in name), None)
    chosen = (
        [ONE]
        if ONE in top
        else (
            sorted(set(json.loads(content(top[index]))["weight_map"].values()))
            if index
            else sorted(name for name in top if name.endswith(".safetensors"))
        )
    )
    values = {}
    for file in chosen:
        values |= safetensors.numpy.load(content(top[file]))
    folder = {"folder": "snapshots/0123abcd"} if any(path.startswith("snapshots/") for path in top.values()) else {}
    return Case(name, data, values, "", on_purpose, folder, links)


def model(draw, count):
    """Tensors over `count` files, and the index's map."""
    files, where = {part(n, count): {} for n in range(1, count + 1)}, {}
    for number in range(draw.randrange(count, 3 * count + 1)):
        file = part(number % count + 1, count)
        shape = tuple(draw.randrange(4) for _ in range(draw.randrange(3)))
        kind = draw.choice([numpy.float32, numpy.float16, numpy.int64, numpy.uint8])
        name = f"layers.{number}.{draw.choice(['weight', 'bias', 'inv_freq'])}"
        files[file][name] = numpy.frombuffer(draw.randbytes(int(numpy.prod(shape)) * numpy.dtype(kind).itemsize), kind).reshape(shape)
        where[name] = file
    return files, where


def good(draw):
    for number in range(30):
        files, where = model(draw, draw.randrange(1, 5))
        yield case(f"files and index {number}", files | {INDEX: index_of(where)})
        if number % 3 == 0:
            yield case(f"files without index {number}", files)
        if number % 3 == 1:  # Hugging Face's cache: links into a folder of blobs that are called by their hashes
            blobs = {f"blobs/{n:040x}": content for n, content in enumerate((files | {INDEX: index_of(where)}).values())}
            links = {f"snapshots/0123abcd/{name}": f"../../{blob}" for name, blob in zip([*files, INDEX], blobs)}
            yield case(f"a cache's links {number}", blobs, links)
        if number % 3 == 2:
            yield case(f"one file beside others {number}", {ONE: files[part(1, len(files))], "extra.safetensors": {"x": numpy.ones(2)}})


def odd(draw):
    a, b = {"a": numpy.arange(3.0)}, {"b": numpy.ones((2, 2), numpy.float32)}
    first, second = part(1, 2), part(2, 2)
    both = {"a": first, "b": second}
    yield case("one file", {ONE: a})
    yield case("one file of another name", {"weights.safetensors": a})
    yield case("two files of other names", {"x.safetensors": a, "y.safetensors": b})
    yield case("one file and an index of others", {ONE: a | b, INDEX: index_of(both)})
    yield case("one file, others and their index", {ONE: {"c": numpy.zeros(1)}, first: a, second: b, INDEX: index_of(both)})
    yield case("an index of one file", {ONE: a, INDEX: index_of({"a": ONE})})
    yield case(
        "an index of another name",
        {
            "diffusion_pytorch_model-1.safetensors": a,
            "diffusion_pytorch_model.safetensors.index.json": index_of({"a": "diffusion_pytorch_model-1.safetensors"}),
        },
    )
    yield case(
        "an index of a variant",
        {
            "model.fp16-00001-of-00001.safetensors": a,
            "model.safetensors.index.fp16.json": index_of({"a": "model.fp16-00001-of-00001.safetensors"}),
        },
    )
    yield case("a file that the index does not list", {first: a, second: b, "consolidated.safetensors": a | b, INDEX: index_of(both)})
    yield case("a tensor that the index does not list", {first: a, second: b | {"c": numpy.ones(1)}, INDEX: index_of(both)})
    yield case("an index without metadata", {first: a, second: b, INDEX: json.dumps({"weight_map": both}).encode()})
    yield case("other files in the folder", {ONE: a, "config.json": b"{}", "README.md": b"#", "tokenizer.json": b"{}"})
    yield case("a folder in the folder", {ONE: a, "onnx/model.safetensors": b})
    # What is missing, and what contradicts itself.
    yield case(
        "a file of the index is missing", {first: a, INDEX: index_of(both)}, words=f"{second}: is missing: {INDEX} has 1 tensor of 2 in it"
    )
    yield case("all files of the index are missing", {INDEX: index_of(both)}, words=f"{first}: is missing")
    yield case("a link that leads nowhere", {first: a, INDEX: index_of(both)}, {second: "../blobs/gone"}, f"{second}: is missing")
    yield case(
        "a file is missing, and no index",
        {first: a},
        words=f"{second}: is missing: 1 file of 2",
        on_purpose="its name says that there are two",
    )
    yield case(
        "the first file is missing, and no index", {second: b}, words=f"{first}: is missing", on_purpose="its name says that there are two"
    )
    yield case(
        "a tensor of the index is in no file",
        {first: a, second: {"c": numpy.ones(1)}, INDEX: index_of(both)},
        words="tensor 'b' is missing, although the index says that it is here",
    )
    yield case(
        "a tensor is in the other file", {first: a | b, second: {"c": numpy.ones(1)}, INDEX: index_of(both)}, words="tensor 'b' is missing"
    )
    yield case(
        "a tensor twice, and no index",
        {"x.safetensors": a, "y.safetensors": a},
        words="tensor 'a' is not covered by its slices",
        on_purpose="one of the two would be lost",
    )
    yield case(
        "two indexes",
        {first: a, second: b, "x.safetensors.index.json": index_of(both), "y.safetensors.index.json": index_of(both)},
        words="has two indexes",
    )
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
    yield case(
        "a file is a Git LFS pointer", {first: a, second: pointer, INDEX: index_of(both)}, words="is a Git LFS pointer, not the file"
    )
    yield case("the index is a Git LFS pointer", {first: a, second: b, INDEX: pointer}, words="is a Git LFS pointer, not the file")
    yield case("a file is empty", {first: a, second: b"", INDEX: index_of(both)}, words=f"{second}: has 0 bytes")
    yield case(
        "a file is a page", {first: a, second: b"<html>not found</html>", INDEX: index_of(both)}, words="is text, not a safetensors file"
    )
    for name, data, words in [
        ("empty", b"", INDEX),
        ("no JSON", b"weight_map", INDEX),
        ("cut short", index_of(both)[:-9], INDEX),
        ("a list", b"[]", "'weight_map'"),
        ("without a map", b'{"metadata": {}}', "'weight_map'"),
        ("with an empty map", index_of({}), "'weight_map'"),
        ("with a map that is a list", index_of([]), "'weight_map'"),
        ("with a number", index_of({"a": 1}), "lies in something"),
        ("with a path", index_of({"a": "../x.safetensors"}), "not the name of a file beside"),
        ("with a path from the top", index_of({"a": "/etc/passwd"}), "not the name of a file beside"),
        ("with a tensor twice", b'{"weight_map": {"a": "x", "a": "y"}}', "appears twice"),
    ]:
        yield case(f"an index {name}", {first: a, second: b, INDEX: data}, words=words)
    yield case(
        "PyTorch's files alone",
        {"pytorch_model-00001-of-00002.bin": b"x", "pytorch_model.bin.index.json": b"{}"},
        words="several pytorch_model-",
        on_purpose="safetensors files are the usual form",
    )
    yield case(
        "a rank's part without the manifest", {"rank-00000.safetensors": a, "rank-00000.json": b"{}"}, words="manifest.json: is missing"
    )


def cases():
    draw = random.Random(11)
    yield from good(draw)
    yield from odd(draw)
