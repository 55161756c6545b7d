"""PNG pictures and tar files made of bytes, for tests that want them bad in one place."""
import io
import struct
import tarfile
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
