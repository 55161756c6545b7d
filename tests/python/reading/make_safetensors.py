"""Safetensors files: what the safetensors package writes, and headers by hand; what its own reader says to each."""

import base64
import json
import random
import struct

import numpy
import safetensors
from cases import Case

TOOL = f"safetensors {safetensors.__version__}"
FILE = "x.safetensors"
# The format's name -> that of a case, bytes of an element.
DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "C64": ("complex64", 8),
}
SHAPES = [(), (0,), (1,), (3,), (2, 3), (2, 0, 3), (1, 2, 3, 2)]


def count(shape):
    return int(numpy.prod(shape, dtype=numpy.int64))


def serialized(tensors, metadata=None):
    """`tensors`: name -> dtype as torch calls it, shape, bytes."""
    held = {name: numpy.frombuffer(data or b"\0", numpy.uint8) for name, (_, _, data) in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(dtype=dtype, shape=list(shape), data_ptr=held[name].ctypes.data, data_len=len(data))
        for name, (dtype, shape, data) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata))


def read(data):
    """What the package reads, and how many tensors; raises what it raises."""
    values = {"@tensors": numpy.array(0)}
    for name, entry in safetensors.deserialize(data):
        values[name] = {
            "dtype": DTYPES[entry["dtype"]][0],
            "shape": entry["shape"],
            "data": base64.b64encode(bytes(entry["data"])).decode(),
        }
        values["@tensors"] = values["@tensors"] + 1
    values["@tensors"] = numpy.array(int(values["@tensors"]))
    return values


def case(name, data, words="", on_purpose=""):
    """`words`: of our refusal; the package refuses the file, too, unless `on_purpose` says why it does not matter."""
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        assert words and not on_purpose, f"{name}: {TOOL} refuses it: {error}"
    else:
        assert bool(words) == bool(on_purpose), f"{name}: {TOOL} reads it"
    return Case(name, {FILE: data}, {} if words else read(data), words, on_purpose)


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def bits(draw, dtype, shape):
    size = count(shape) * DTYPES[dtype][1]
    return bytes(draw.randrange(2) for _ in range(size)) if dtype == "BOOL" else draw.randbytes(size)


def written(draw):
    for dtype, (name, _) in DTYPES.items():
        for shape in SHAPES:
            yield case(f"{dtype} {list(shape)}", serialized({"w": (name, shape, bits(draw, dtype, shape))}))
    letters = ["a", "b", "weight", "层", "é", ".", "..", "0", " ", "-", "_", "ß", "😀", "'", '"', "\\", "/x", ":", "{", "[", "%s"]
    for number in range(60):
        tensors = {}
        for _ in range(draw.randrange(1, 9)):
            dtype, shape = draw.choice(list(DTYPES)), tuple(draw.randrange(4) for _ in range(draw.randrange(4)))
            name = "x" + "".join(draw.choice(letters) for _ in range(draw.randrange(1, 7)))
            if "/../" in name + "/":
                continue
            tensors[name] = (DTYPES[dtype][0], shape, bits(draw, dtype, shape))
        metadata = {
            f"key {n}": draw.choice(["pt", "", "ünï", '{"a": 1}']) for n in range(draw.randrange(2))
        } or None  # the package mixes several
        yield case(f"drawn {number}", serialized(tensors, metadata))
    yield case("no tensor", serialized({}))
    yield case("metadata alone", serialized({}, {"format": "pt"}))


def headers():
    two = b"ab"
    yield case("padded with blanks", raw(json.dumps({"w": entry()}) + " " * 37, two))
    yield case("keys of an entry in another order", raw('{"w":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}}', two))
    yield case("entries in another order than their bytes", raw({"a": entry(offsets=(2, 4)), "b": entry(offsets=(0, 2))}, b"abcd"))
    yield case("an escaped name", raw('{"\\u00e9\\ud83d\\ude00\\/":' + json.dumps(entry()) + "}", two))
    yield case("odd alignment", raw({"a": entry(shape=(1,), offsets=(0, 1)), "b": entry("F32", (1,), (1, 5))}, b"abcde"))
    yield case("blanks inside", raw('{ "w" : { "dtype" : "U8" , "shape" : [ 2 ] ,\n "data_offsets" : [ 0 , 2 ] } }', two))
    yield case("metadata that is empty", raw({"__metadata__": {}, "w": entry()}, two))
    yield case("metadata with an empty key", raw({"__metadata__": {"": ""}, "w": entry()}, two))
    yield case(
        "four-bit numbers",
        raw({"w": entry("F4", (4,))}, two),
        "'F4', which Troupe does not know",
        "LibTorch has no tensor of single numbers of four bits",
    )
    yield case(
        "six-bit numbers",
        raw({"w": entry("F6_E2M3", (4,), (0, 3))}, b"abc"),
        "'F6_E2M3', which Troupe does not know",
        "LibTorch has no tensor of numbers of six bits",
    )
    yield case("64 dimensions", raw({"w": entry(shape=(1,) * 64, offsets=(0, 1))}, b"a"))
    yield case(
        "65 dimensions",
        raw({"w": entry(shape=(1,) * 65, offsets=(0, 1))}, b"a"),
        "'shape' has 65 dimensions",
        "LibTorch has at most 64 dimensions",
    )
    for name, text, words in [
        ("empty", "", "is empty"),
        ("with a tab", "a\tb", "holds control characters"),
        ("like a path", "../w", "looks like a path"),
        ("of 4097 bytes", "n" * 4097, "has 4097 bytes, more than the 4096"),
    ]:
        yield case(f"a name {name}", raw({text: entry()}, two), words, "such a name is no parameter's, and other tools make a path of it")
    yield case("a bool that is 2", raw({"w": entry("BOOL")}, b"\1\2"), "holds neither false nor true", "such a bool is undefined in C++")
    # Broken.
    yield case("nothing", b"", "has 0 bytes")
    yield case("seven bytes", bytes(7), "has 7 bytes")
    yield case("no header", bytes(8), "the header is not a JSON object")
    yield case("a header longer than the file", struct.pack("<Q", 99) + b'{"w":', "a header of 99 bytes in a file of 13")
    yield case("a header above 100 MB", struct.pack("<Q", 100_000_001) + b"{}", "more than the 100000000 allowed")
    yield case("a length of 2^63", struct.pack("<Q", 1 << 63) + b"{}", "more than the 100000000 allowed")
    yield case("text", b"step-00000010\nxxh3 0123456789abcdef\n", "is text, not a safetensors file: it begins with 'step-000'")
    yield case("a page", b"<!DOCTYPE html>\n<html>no such file</html>\n", "is text")
    yield case(
        "a Git LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n",
        "is a Git LFS pointer, not the file",
    )
    yield case("a zip archive", b"PK\3\4" + bytes(60), "is a zip archive")
    yield case("a pickle", b"\x80\x02}q\0." + bytes(60), "is a Python pickle")
    yield case(
        "a blank before the header",
        raw(" " + json.dumps({"w": entry()}), two),
        "the header is not a JSON object",
        "the format's description wants a brace first, and safetensors 0.8 alone does not look",
    )
    yield case("a byte order mark", raw("﻿" + json.dumps({"w": entry()}), two), "the header is not a JSON object")
    yield case("an array", raw("[]"), "the header is not a JSON object")
    for name, header, words in [
        ("overlap", {"a": entry(), "b": entry(offsets=(1, 3))}, "(overlap)"),
        ("the same bytes", {"a": entry(), "b": entry()}, "(overlap)"),
        ("hole", {"a": entry(), "b": entry(shape=(1,), offsets=(3, 4))}, "(gap)"),
        ("hole at the start", {"a": entry(offsets=(1, 3))}, "(gap)"),
        ("bytes after the last", {"a": entry(shape=(1,), offsets=(0, 1))}, "bytes after the last tensor belong to no tensor"),
        ("beyond the end", {"a": entry(shape=(9,), offsets=(0, 9))}, "ends at 9"),
        ("offsets reversed", {"a": entry(offsets=(2, 0))}, "before it begins"),
        ("more bytes than the shape", {"a": entry("U8", (1,))}, "span 2 bytes, dtype and shape need 1"),
        ("fewer bytes than the dtype", {"a": entry("F32", (2,))}, "span 2 bytes, dtype and shape need 8"),
        ("unknown dtype", {"a": entry("F33")}, "'F33', which Troupe does not know"),
        ("dtype in small letters", {"a": entry("u8")}, "does not know"),
        ("a shape of 2^64", {"a": entry(shape=(1 << 32, 1 << 32))}, "63 bits"),
        ("a shape below 0", {"a": entry(shape=(-2,))}, "'shape'"),
        ("a real shape", {"a": entry(shape=(2.0,))}, "'shape'"),
        ("a shape in words", {"a": {**entry(), "shape": "2"}}, "'shape'"),
        ("no shape", {"a": {"dtype": "U8", "data_offsets": [0, 2]}}, "'shape' is missing"),
        ("no dtype", {"a": {"shape": [2], "data_offsets": [0, 2]}}, "'dtype' is missing"),
        ("no offsets", {"a": {"dtype": "U8", "shape": [2]}}, "'data_offsets' is missing"),
        ("three offsets", {"a": entry(offsets=(0, 1, 2))}, "'data_offsets' is not a pair"),
        ("offsets in words", {"a": entry(offsets=("0", "2"))}, "'data_offsets'"),
        ("an entry that is a list", {"a": [1]}, "is not an object"),
        ("metadata with a number", {"__metadata__": {"a": 1}, "w": entry()}, "'__metadata__'"),
        ("metadata that is a list", {"__metadata__": [], "w": entry()}, "'__metadata__'"),
        ("a field of another kind", {"a": entry(stride=[1])}, "is not a field of the format"),
    ]:
        size = {"overlap": 3, "hole": 4, "hole at the start": 3}.get(name, 2)
        yield case(name, raw(header, b"abcd"[:size]), words, PURPOSE.get(name, ""))
    yield case("a name twice", raw('{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2), two), "appears twice", PURPOSE["a name twice"])
    yield case("a field twice", raw('{"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}', two), "appears twice")
    yield case("metadata twice", raw('{"__metadata__":{},"__metadata__":{"a":"b"},"w":%s}' % json.dumps(entry()), two), "appears twice")
    yield case(
        "metadata with a key twice",
        raw('{"__metadata__":{"a":"1","a":"2"},"w":%s}' % json.dumps(entry()), two),
        "appears twice",
        "one of the two values would be lost",
    )
    yield case("bytes behind the header's object", raw(json.dumps({"w": entry()}) + "x", two), FILE)
    yield case("a header cut short", raw('{"w":{"dtype":"U8"', two), FILE)
    yield case("a name that is no UTF-8", raw(b'{"\xff":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', two), FILE)
    yield case("a comma too many", raw('{"w":%s,}' % json.dumps(entry()), two), FILE)
    yield case("NaN", raw('{"w":{"dtype":"U8","shape":[NaN],"data_offsets":[0,2]}}', two), FILE)


# What the package reads and Troupe refuses.
PURPOSE = {
    "a name twice": "one of the two tensors would be lost",
    "a field of another kind": "a field that means something would be overlooked",
}


def damaged(draw):
    good = serialized({"a": ("float32", [2], b"abcdefgh"), "b": ("int8", [3], b"xyz")}, {"format": "pt"})
    for length in range(0, len(good), 9):
        yield case(f"cut to {length} bytes", good[:length], FILE)
    for number in range(60):
        at = draw.randrange(len(good) - 11)
        bad = bytearray(good)
        bad[at] ^= 1 << draw.randrange(8)
        try:
            read(bytes(bad))
            words = ""
        except Exception:
            words = FILE
        yield case(f"bit flipped {number}", bytes(bad), words)


def cases():
    draw = random.Random(8)
    yield from written(draw)
    yield from headers()
    yield from damaged(draw)
