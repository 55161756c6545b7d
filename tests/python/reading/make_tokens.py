"""Token files of all widths, and what numpy reads in them: `ids`. numpy writes the .npy files; llm.c's header and Megatron-LM's index are
laid out by hand as their readers read them (llm.c: dev/data/data_common.py, Megatron-LM: core/datasets/indexed_dataset.py).
"""

import io
import random
import struct

import numpy

from cases import Case

TOOL = f"numpy {numpy.__version__}"
WIDTH = "numpy is told the width; without it every second number would be wrong"
SHAPE = "a sample must not cross from one row into the next"
ORDER = "only little-endian files are read"

MEGATRON = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


def npy(array, version=None):
    out = io.BytesIO()
    numpy.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def llm(ids, magic, version, kind, count=None):
    header = numpy.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    return header.tobytes() + ids.astype(kind).tobytes()


def index(lengths, code, magic=b"MMIDIDX\x00\x00", version=1):
    ends = numpy.cumsum([0] + lengths[:-1], dtype="<i8") * numpy.dtype(MEGATRON.get(code, "float32")).itemsize
    return (
        magic
        + struct.pack("<QBQQ", version, code, len(lengths), len(lengths) + 1)
        + numpy.array(lengths, dtype="<i4").tobytes()
        + ends.tobytes()
        + numpy.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )


def read(name, files, ids, vocab=50257, **settings):
    return Case(name, files, {"ids": ids.astype("int64")}, settings={"vocab_size": vocab, **settings})


def refused(name, files, words, why="", vocab=50257, **settings):
    return Case(name, files, refused=words, on_purpose=why, settings={"vocab_size": vocab, **settings})


def drawn_ids(draw, below):
    return numpy.array([draw.randrange(below) for _ in range(draw.randrange(6, 40))])


def drawn(draw, at):
    kind = draw.choice(["uint16", "uint32 by setting", "npy", "llm.c", "Megatron", "wider", "wider npy"])
    vocab = draw.choice([300, 32000, 50257, 65536, 128256, 262144])
    ids = drawn_ids(draw, vocab)
    name = f"drawn {at}: {kind}, {vocab}"
    if kind == "uint16":
        if vocab > 65536:
            return refused(name, {"a.bin": ids.astype("<u2").tobytes()}, "its ids are taken for 16 bits", WIDTH, vocab)
        data = ids.astype("<u2").tobytes()
        return read(name, {"a.bin": data}, numpy.frombuffer(data, "<u2"), vocab, token_bits=draw.choice([0, 0, 16]))
    if kind == "uint32 by setting":
        data = ids.astype("<u4").tobytes()
        return read(name, {"a.bin": data}, numpy.frombuffer(data, "<u4"), vocab, token_bits=32)
    if kind == "llm.c":
        wide = vocab > 65536 or draw.random() < 0.5
        data = llm(ids, 20240801, 7, "<u4") if wide else llm(ids, 20240520, 1, "<u2")
        return read(name, {"a.bin": data}, numpy.frombuffer(data[1024:], "<u4" if wide else "<u2"), vocab)
    if kind == "Megatron":
        code = draw.choice([code for code, type_ in MEGATRON.items() if numpy.iinfo(type_).max >= vocab] + [4])
        cuts = sorted(draw.sample(range(1, len(ids)), 2))
        data = ids.astype(MEGATRON[code]).tobytes()
        lengths = [cuts[0], cuts[1] - cuts[0], len(ids) - cuts[1]]
        return read(name, {"a.bin": data, "a.idx": index(lengths, code)}, numpy.frombuffer(data, MEGATRON[code]), vocab)
    if kind == "wider":
        data = ids.astype(draw.choice(["<u4", "<i4", "<i8", "<u8"])).tobytes()
        words = "its ids are taken for 16 bits" if vocab > 65536 else "every second one of its 16-bit numbers is near 0"
        return refused(name, {"a.bin": data}, words, WIDTH, vocab)
    types = ["<u4", "<i4", "<i8", "<u8"] if kind == "wider npy" or vocab > 32768 else ["<u2", "<i2"]
    data = npy(ids.astype(draw.choice(types)), draw.choice([(1, 0), (2, 0), (3, 0)]))
    return read(name, {draw.choice(["a.npy", "a.npy", "a.bin"]): data}, numpy.load(io.BytesIO(data)), vocab)


def by_hand():
    ids = numpy.arange(1000, 1012)
    for type_ in ("u1", "i1"):
        data = npy((ids % 100).astype(type_))
        yield read(f"npy of {type_}", {"a.npy": data}, numpy.load(io.BytesIO(data)), 256)
    for type_ in (">u2", ">i4", "<f4", "<f8", "?", "<c8", "S2"):
        wrong = ORDER if type_ in (">u2", ">i4") else "it holds no whole numbers"
        yield refused(f"npy of {type_}", {"a.npy": npy(ids.astype(type_))}, "is not a little-endian integer", wrong)
    yield refused("npy of two dimensions", {"a.npy": npy(ids.astype("<u2").reshape(3, 4))}, "'(3, 4)' is not one dimension", SHAPE)
    yield refused("npy of one number", {"a.npy": npy(numpy.array(5, dtype="<u2"))}, "'()' is not one dimension", SHAPE)
    yield refused("npy that is cut off", {"a.npy": npy(ids.astype("<u2"))[:-4]}, "number of tokens: 12, but the file holds 10")
    yield refused(
        "npy with more behind it",
        {"a.npy": npy(ids.astype("<u2")) * 2},
        "number of tokens: 12, but the file holds",
        "numpy leaves the rest",
    )
    yield refused("npy whose header is cut off", {"a.npy": npy(ids.astype("<u2"))[:40]}, "shape")
    yield refused(
        "npy whose header says 32 bits, a setting 16",
        {"a.npy": npy(ids.astype("<u4"))},
        "token_bits is 16, its header says 32",
        "the setting contradicts the file",
        token_bits=16,
    )
    yield refused(
        "a negative id",
        {"a.npy": npy(numpy.array([5, -1, 7] * 4, dtype="<i4"))},
        "token id -1 is not below vocab_size",
        "there is no such token",
    )
    yield refused(
        "an id as large as the vocabulary",
        {"a.bin": numpy.array([5, 50257, 7, 9], dtype="<u2").tobytes()},
        "offset 2: token id 50257 is not below vocab_size 50257",
        "there is no such token",
    )
    yield refused(
        "16 bits read as 32",
        {"a.bin": ids.astype("<u2").tobytes()},
        "is not below vocab_size",
        "the setting contradicts the file",
        token_bits=32,
    )
    yield refused(
        "64 bits read as 32", {"a.bin": ids.astype("<i8").tobytes()}, "every second one of its 32-bit numbers is near 0", WIDTH, token_bits=32
    )
    yield refused(
        "an odd number of bytes", {"a.bin": ids.astype("<u2").tobytes()[:-1]}, "offset 22: its 23 bytes are not a whole number of uint16"
    )
    yield refused(
        "three bytes too few for 32 bits", {"a.bin": ids.astype("<u4").tobytes()[:-3]}, "not a whole number of uint32", token_bits=32
    )
    yield refused(
        "text", {"a.bin": b"to be, or not to be, that is the question\n"}, "all its bytes are text", "numpy reads any bytes as numbers"
    )
    yield refused("zeros", {"a.bin": bytes(64)}, "every second one of its 16-bit numbers is near 0", WIDTH)
    yield read("zeros, by setting", {"a.bin": bytes(64)}, numpy.zeros(32), token_bits=16)
    yield read(
        "a vocabulary of three",
        {"a.bin": numpy.array([0, 1, 2, 2, 1, 0] * 3, dtype="<u2").tobytes()},
        numpy.array([0, 1, 2, 2, 1, 0] * 3),
        3,
    )
    yield read(
        "every second is 0, by setting",
        {"a.bin": numpy.array([500, 0] * 6, dtype="<u2").tobytes()},
        numpy.array([500, 0] * 6),
        token_bits=16,
    )
    yield read("a large vocabulary in 16 bits, by setting", {"a.bin": ids.astype("<u2").tobytes()}, ids, 128256, token_bits=16)
    for count in (11, 13, 2**31 - 1):
        yield refused(
            f"llm.c's header promises {count}",
            {"a.bin": llm(ids, 20240520, 1, "<u2", count)},
            f"number of tokens: {count}, but the file holds 12",
        )
    for magic, version in ((20240520, 2), (20240801, 1)):
        yield refused(f"llm.c's {magic}, version {version}", {"a.bin": llm(ids, magic, version, "<u2")}, f"offset 4, version: {version}")
    wide = ids.astype("<i4").tobytes()
    yield refused("Megatron's floats", {"a.bin": wide, "a.idx": index([12], 6)}, "offset 17, dtype: 6 is not an integer")
    yield refused("Megatron's index of version 2", {"a.bin": wide, "a.idx": index([12], 4, version=2)}, "offset 9, version: 2")
    yield refused(
        "Megatron's older index", {"a.bin": wide, "a.idx": index([12], 4, magic=b"TNTIDX\x00\x00\x00")}, "offset 0, magic: it is not an index"
    )
    yield refused("Megatron's index that is cut off", {"a.bin": wide, "a.idx": index([12] * 9, 4)[:40]}, "offset 18, sequences: 9")
    yield refused(
        "Megatron's ids that are cut off", {"a.bin": wide[:-8], "a.idx": index([7, 5], 4)}, "number of tokens: 12, but the file holds 10"
    )
    yield refused(
        "Megatron's index, a setting against it",
        {"a.bin": wide, "a.idx": index([12], 4)},
        "token_bits is 16, its header says 32",
        "the setting contradicts the file",
        token_bits=16,
    )


def cases():
    yield from by_hand()
    draw = random.Random(32)
    for at in range(240):
        yield drawn(draw, at)
