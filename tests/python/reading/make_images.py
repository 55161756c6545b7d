"""PNG and JPEG files of every kind, and the pixels that Pillow reads in them: `rgb` is convert("RGB"), `grey` is that as "L" (PNG)."""

import io
import itertools
import struct
import zlib

import numpy
import PIL
from PIL import Image

from cases import Case

TOOL = f"Pillow {PIL.__version__}"
SIZES = [(1, 1), (5, 3), (9, 11)]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]  # x, y, step x, step y
PLANES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
SIXTEEN = "16 bits of grey: Pillow cuts off what is above 255, which leaves a white picture; the upper 8 bits are kept"


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed_rows(samples, depth, filters):
    """(h, w, planes) as PNG's rows, each with one of its filters."""
    height = samples.shape[0]
    flat = samples.reshape(height, -1)
    if depth == 16:
        rows = flat.astype(">u2").view(numpy.uint8).reshape(height, -1)
    elif depth == 8:
        rows = flat.astype(numpy.uint8)
    else:
        bits = (flat[..., None] >> numpy.arange(depth - 1, -1, -1)) & 1
        rows = numpy.packbits(bits.reshape(height, -1).astype(numpy.uint8), axis=1)
    step = max(1, samples.shape[2] * depth // 8)
    out, above = b"", numpy.zeros(rows.shape[1], numpy.int64)
    for row, kind in zip(rows.astype(numpy.int64), itertools.cycle(filters)):
        left = numpy.concatenate([numpy.zeros(step, numpy.int64), row])[: row.size]
        corner = numpy.concatenate([numpy.zeros(step, numpy.int64), above])[: row.size]
        guess = left + above - corner
        away = [abs(guess - other) for other in (left, above, corner)]
        paeth = numpy.where((away[0] <= away[1]) & (away[0] <= away[2]), left, numpy.where(away[1] <= away[2], above, corner))
        predicted = [0 * row, left, above, (left + above) // 2, paeth][kind]
        out += bytes([kind]) + ((row - predicted) % 256).astype(numpy.uint8).tobytes()
        above = row
    return out


def png(samples, colour, depth, interlaced=False, before=b"", filters=(0, 1, 2, 3, 4), parts=1):
    height, width = samples.shape[:2]
    if interlaced:
        passes = [samples[y::dy, x::dx] for x, y, dx, dy in ADAM7]
        raw = b"".join(packed_rows(each, depth, filters) for each in passes if each.size)
    else:
        raw = packed_rows(samples, depth, filters)
    data = zlib.compress(raw)
    cuts = [len(data) * i // parts for i in range(parts + 1)]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    idat = b"".join(chunk(b"IDAT", data[a:b]) for a, b in zip(cuts, cuts[1:]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + idat + chunk(b"IEND", b"")


def read(data):
    image = Image.open(io.BytesIO(data))
    rgb = image.convert("RGB")
    values = {"rgb": numpy.asarray(rgb).copy()}
    if image.format == "PNG":  # of a JPEG the light itself is taken, without a detour by RGB
        values["grey"] = numpy.asarray(rgb.convert("L"))[..., None].copy()
    return values


def case(name, data, **more):
    return Case(name, {"picture": data}, values=read(data), **more)


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def own_pngs(draw):
    for colour, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
        for depth, interlaced, (width, height), clear in itertools.product(depths, (False, True), SIZES, (False, True)):
            if clear and (colour in (4, 6) or width == 1):
                continue
            top = 1 << depth
            samples = draw.integers(0, top, (height, width, PLANES[colour]))
            before = b""
            if colour == 3:
                before = chunk(b"PLTE", draw.integers(0, 256, 3 * min(256, top), dtype=numpy.uint8).tobytes())
            if clear:
                first = samples[0, 0].astype(">u2").tobytes()
                before += chunk(b"tRNS", bytes([0, 128]) if colour == 3 else first)
            name = f"PNG colour {colour}, {depth} bits, {width}x{height}" + ", interlaced" * interlaced + ", tRNS" * clear
            data = png(samples, colour, depth, interlaced, before)
            if colour == 0 and depth == 16:
                upper = numpy.repeat((samples >> 8).astype(numpy.uint8), 3, 2)
                yield Case(name, {"picture": data}, {"rgb": upper, "grey": upper[..., :1].copy()}, on_purpose=SIXTEEN)
            else:
                yield case(name, data)
    samples = draw.integers(0, 256, (9, 11, 3))
    for kind in range(5):
        yield case(f"PNG with filter {kind}", png(samples, 2, 8, filters=(kind,)))
    yield case("PNG in five IDAT chunks", png(samples, 2, 8, parts=5))
    for name, content in {
        "gAMA": struct.pack(">I", 45455),
        "cHRM": bytes(32),
        "sRGB": b"\0",
        "pHYs": struct.pack(">IIB", 1, 2, 0),
        "tEXt": b"Title\0x",
        "bKGD": bytes(6),
        "iCCP": b"none\0\0" + zlib.compress(b"no profile"),
        "eXIf": b"MM\0*broken",
        "zTXt": b"k\0\0" + zlib.compress(b"z" * 5000),
    }.items():
        yield case(f"PNG with {name}", png(samples, 2, 8, before=chunk(name.encode(), content)))


def pillow_pngs(image):
    for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        for level in (0, 9):
            if mode == "PA":
                continue
            yield case(f"Pillow's PNG of mode {mode}, level {level}", saved(image.convert(mode), "PNG", compress_level=level))
    for colours in (2, 3, 16, 200):
        yield case(f"Pillow's PNG of {colours} colours", saved(image.quantize(colours), "PNG"))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        yield case(f"PNG, EXIF orientation {orientation}", saved(image, "PNG", exif=exif))
    yield case("animated PNG: its first picture", saved(image, "PNG", save_all=True, append_images=[image.rotate(180)]))


def jpegs(image):
    for mode, quality, progressive, size in itertools.product(
        ("L", "RGB", "CMYK"), (20, 75, 100), (False, True), ((1, 1), (7, 5), (17, 9))
    ):
        options = {"subsampling": 0} if mode == "CMYK" else {}
        data = saved(image.resize(size).convert(mode), "JPEG", quality=quality, progressive=progressive, **options)
        yield case(f"JPEG {mode}, quality {quality}, {size[0]}x{size[1]}" + ", progressive" * progressive, data)
    for subsampling, (width, height) in itertools.product((0, 1, 2), ((3, 2), (8, 8), (16, 15), (19, 21))):
        data = saved(image.resize((width, height)), "JPEG", subsampling=subsampling)
        yield case(f"JPEG {width}x{height}, subsampling {subsampling}", data)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        yield case(f"JPEG, EXIF orientation {orientation}", saved(image, "JPEG", exif=exif))
    plain = saved(image, "JPEG")
    for name, options in {
        "optimised": {"optimize": True},
        "RGB kept": {"keep_rgb": True},
        "restart rows": {"restart_marker_rows": 1},
        "restart blocks": {"restart_marker_blocks": 1},
        "a comment": {"comment": b"hello"},
        "dpi": {"dpi": (300, 300)},
        "an ICC profile": {"icc_profile": b"no profile at all" * 9},
        "tables of another kind": {"qtables": "web_high"},
    }.items():
        yield case(f"JPEG, {name}", saved(image, "JPEG", **options))
    for name, body in {
        "broken EXIF": b"Exif\0\0MM\0*\xff\xff\xff\xff",
        "empty EXIF": b"Exif\0\0",
        "XMP": b"http://ns.adobe.com/xap/1.0/\0<x",
    }.items():
        segment = b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body
        yield case(f"JPEG with {name}", plain[:2] + segment + plain[2:])
    yield case("JPEG with bytes behind its end", plain + b"and more" * 9)
    yield case("JPEG with fill bytes before a marker", plain[:2] + b"\xff\xff" + plain[2:])


def refused(image):
    neither = "neither JPEG nor PNG"
    for kind, word in {
        "GIF": "but GIF",
        "BMP": "but BMP",
        "TIFF": "but TIFF",
        "WEBP": "but WebP",
        "PPM": neither,
        "AVIF": "but HEIC, AVIF",
    }.items():
        yield Case(
            f"{kind} by another name",
            {"picture": saved(image, kind)},
            refused=word,
            on_purpose="Pillow reads these formats, Troupe does not",
        )
    for name, data, words in [
        ("nothing", b"", "its 0 bytes are " + neither),
        ("text", b"hello", neither),
        ("an HTML page", b"<!DOCTYPE html><p>404", "an HTML page"),
        ("a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("PNG's magic alone", b"\x89PNG\r\n\x1a\n", neither),
        ("JPEG's magic alone", b"\xff\xd8\xff", "JPEG header"),
    ]:
        yield Case(name, {"picture": data}, refused=words)
    for kind, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {})):
        data = saved(image, kind, **options)
        for part in (3, 2):
            cut = data[: len(data) * (part - 1) // part] if kind == "PNG" else data[: len(data) - 30 * part]
            name = f"{kind}{', progressive' * bool(options)} that ends early, {len(cut)} of {len(data)} bytes"
            yield Case(name, {"picture": cut}, refused="picture: ")
    broken = bytearray(saved(image, "PNG"))
    broken[broken.index(b"IHDR") + 8] ^= 1
    yield Case("PNG with a header that fails its checksum", {"picture": bytes(broken)}, refused="header: ")
    odd = saved(image.convert("CMYK"), "JPEG", subsampling=2)
    yield Case(
        "JPEG of CMYK, 4:2:0", {"picture": odd}, refused="or 4:4:4 for CMYK", on_purpose="libjpeg-turbo's simple interface has no name for it"
    )


def cases():
    draw = numpy.random.default_rng(32)
    y, x = numpy.mgrid[0:11, 0:14]
    waves = numpy.stack([127 + 120 * numpy.sin(x / 3 + y / (4 + c) + c) for c in range(3)], -1).astype(numpy.uint8)
    image = Image.fromarray(waves, "RGB")
    yield from own_pngs(draw)
    yield from pillow_pngs(image)
    yield from jpegs(image)
    yield from refused(image)
