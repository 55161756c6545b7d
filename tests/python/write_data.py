"""Writes data sets with the tools that people write them with, and says what is in them: write_data.py FOLDER

FOLDER/pictures/NAME (Pillow), FOLDER/classes/{cat,dog}/*.jpg, FOLDER/shards/*.tar (tarfile), FOLDER/tokens/*.bin and FOLDER/mnist (numpy). The
last line is JSON. Exits with 77 without Pillow or numpy.
"""
import ctypes
import gzip
import io
import json
import pathlib
import sys
import tarfile

try:
    import numpy
    from PIL import Image, ImageDraw
except ImportError as error:
    print(f"SKIPPED: {error}; install python3-numpy and python3-pil")
    sys.exit(77)

folder = pathlib.Path(sys.argv[1])
said = {"pictures": {}, "squares": {}, "members": {}}


def picture(number, width, height, mode="RGB"):
    """Smooth colours and some edges: what JPEG is for."""
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [127 + 120 * numpy.sin(x / (7 + number % 5) + y / (11 + c) + number) for c in range(3)]
    image = Image.fromarray(numpy.stack(waves, -1).astype(numpy.uint8), "RGB")
    ImageDraw.Draw(image).rectangle([width // 4, height // 4, width // 2, height // 2], fill=(250, number * 40 % 256, 10))
    return image.convert(mode)


def jpeg(number, width=40, height=30):
    buffer = io.BytesIO()
    picture(number, width, height).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def with_chroma(image, kind):
    """A JPEG with chroma that Pillow does not write, by libturbojpeg: TJSAMP_440 is 4, TJSAMP_411 is 5."""
    turbo = ctypes.CDLL("libturbojpeg.so.0")
    turbo.tjInitCompress.restype = ctypes.c_void_p
    pixels, out, length = image.tobytes(), ctypes.c_void_p(), ctypes.c_ulong()
    if turbo.tjCompress2(ctypes.c_void_p(turbo.tjInitCompress()), pixels, image.width, 0, image.height, 0, ctypes.byref(out), ctypes.byref(length), kind, 90, 0) != 0:
        raise SystemExit("libturbojpeg refused")
    return ctypes.string_at(out.value, length.value)


(folder / "pictures").mkdir()
rgba = picture(3, 33, 21, "RGBA")
rgba.putalpha(Image.linear_gradient("L").resize((33, 21)))
palette = picture(4, 20, 17).quantize(13)
for name, image, options in [
    ("plain.jpg", picture(0, 47, 31), {"quality": 85}), ("full_chroma.jpg", picture(1, 16, 16), {"subsampling": 0}),
    ("progressive.jpeg", picture(2, 64, 48), {"progressive": True}), ("grey.jpg", picture(5, 23, 9, "L"), {}),
    ("ink.jpg", picture(6, 32, 24, "CMYK"), {}), ("plain.png", picture(7, 19, 23), {}), ("alpha.png", rgba, {}),
    ("palette.png", palette, {"transparency": 0}), ("grey.png", picture(8, 15, 4, "L"), {}), ("bits.png", picture(9, 21, 8, "1"), {}),
    ("grey_alpha.png", picture(10, 9, 9, "LA"), {}), ("one_pixel.png", picture(11, 1, 1), {}),
    ("chroma_422.jpg", picture(12, 35, 19), {"subsampling": 1}), ("chroma_440.jpg", picture(13, 35, 19), {"turbo": 4}), ("chroma_411.jpg", picture(14, 35, 19), {"turbo": 5}),
]:
    path = folder / "pictures" / name
    if "turbo" in options:
        path.write_bytes(with_chroma(image, options["turbo"]))
    else:
        image.save(path, **options)
    with Image.open(path) as read:
        said["pictures"][name] = [read.height, read.width]
        (folder / "pictures" / (name + ".rgb")).write_bytes(read.convert("RGB").tobytes())

picture(15, 35, 19, "CMYK").save(folder / "pictures" / "ink_420.jpg", subsampling=2)  # not read

# A folder for each class; what a square of 16 pixels of each file looks like to Pillow.
number = 0
for label in ("cat", "dog"):
    (folder / "classes" / label).mkdir(parents=True)
    for i in range(6):
        path = folder / "classes" / label / f"{i:02}.jpg"
        width, height = 30 + 4 * i, 44 - 2 * i
        path.write_bytes(jpeg(number, width, height))
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        with Image.open(path) as read:
            square = read.crop((left, top, left + side, top + side)).resize((16, 16), Image.Resampling.BILINEAR)
            said["squares"][f"{label}/{i:02}.jpg"] = list(square.tobytes())
        number += 1

# Shards of different lengths, in every dialect of tar.
(folder / "shards").mkdir()
for shard, (count, dialect) in enumerate([(5, tarfile.USTAR_FORMAT), (9, tarfile.GNU_FORMAT), (3, tarfile.PAX_FORMAT), (7, tarfile.USTAR_FORMAT)]):
    path = folder / "shards" / f"part-{shard:06}.tar"
    with tarfile.open(path, "w", format=dialect) as tar:
        for i in range(count):
            key = f"photos.v1/{'long' * 40 if dialect != tarfile.USTAR_FORMAT and i == 1 else ''}{shard}_{i:03}"
            for extension, content in [("jpg", jpeg(10 * shard + i)), ("json", b'{"any": "thing"}'), ("cls", f"{(shard + i) % 3}\n".encode())]:
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    with tarfile.open(path) as tar:
        said["members"][path.name] = [[member.name, member.offset_data, member.size] for member in tar.getmembers()]

(folder / "tokens").mkdir()
for magic, version, dtype, name in [(20240520, 1, numpy.uint16, "small"), (20240801, 7, numpy.uint32, "large")]:
    header = numpy.zeros(256, dtype=numpy.int32)
    ids = numpy.arange(11, dtype=dtype) + (70_000 if dtype == numpy.uint32 else 0)
    header[0], header[1], header[2] = magic, version, len(ids)
    with open(folder / "tokens" / f"{name}.bin", "wb") as file:
        file.write(header.tobytes())
        file.write(ids.tobytes())
numpy.arange(11, dtype=numpy.uint16).tofile(folder / "tokens" / "raw.bin")

(folder / "mnist").mkdir()
for part, count in [("train", 6), ("t10k", 2)]:
    images = numpy.arange(count * 28 * 28, dtype=numpy.uint32).astype(numpy.uint8)
    with gzip.open(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", "wb") as file:
        file.write(numpy.array([0x803, count, 28, 28], dtype=">i4").tobytes() + images.tobytes())
    with gzip.open(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(numpy.array([0x801, count], dtype=">i4").tobytes() + numpy.arange(count, dtype=numpy.uint8).tobytes())
print(json.dumps(said))
