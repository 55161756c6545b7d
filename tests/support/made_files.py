"""PNG pictures, tar files and files of torch.save made of bytes, for tests that want them bad in one place."""
import io
import struct
import tarfile
import zipfile
import zlib


def png(width, height, bits=8, colours=2, data=None):
    """`data`: the rows, each behind its filter's byte; by default some colours for 8 bits of RGB."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = (b"\0" + bytes(i % 256 for i in range(3 * width))) * height if data is None else data
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def tar(*members):
    """(name, content) of each."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def torch_tensor(elements=2, offset=0, sizes=(2,), strides=(1,), storage="0", kind="FloatStorage", rebuild="_rebuild_tensor_v2"):
    """A tensor in a pickle, as torch.save describes it."""
    text = lambda value: b"X" + struct.pack("<I", len(value)) + value.encode()
    number = lambda value: b"\x8a\x08" + struct.pack("<q", value)
    tuple_of = lambda *values: b"(" + b"".join(values) + b"t"
    place = tuple_of(text("storage"), f"ctorch\n{kind}\n".encode(), text(storage), text("cpu"), number(elements)) + b"Q"
    return (f"ctorch._utils\n{rebuild}\n".encode() +
            tuple_of(place, number(offset), tuple_of(*map(number, sizes)), tuple_of(*map(number, strides)), b"\x89", b"ccollections\nOrderedDict\n)R") + b"R")


def torch_file(tensors, *storages, compression=zipfile.ZIP_STORED):
    """What torch.save writes; `tensors`: name -> a pickled value, or a whole pickle."""
    if isinstance(tensors, dict):
        items = b"".join(b"X" + struct.pack("<I", len(name)) + name.encode() + value for name, value in tensors.items())
        tensors = b"\x80\x02}(" + items + b"u."
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in [("data.pkl", tensors), ("byteorder", b"little"), *((f"data/{i}", storage) for i, storage in enumerate(storages))]:
            file.writestr("model/" + name, content)
    return buffer.getvalue()
