"""Tar shards of webdataset's TarWriter, Python's tarfile, GNU tar and bsdtar, and the samples that webdataset reads in them: keys (texts,
one a line), labels and pixels. BSDTAR names bsdtar; without it, `bsdtar` is looked for where programs are.
"""

import bz2
import gzip
import io
import lzma
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import numpy
import webdataset
from PIL import Image

from cases import Case

TOOL = f"webdataset {webdataset.__version__}, Pillow {Image.__version__}"
SPLIT = "webdataset makes samples of these names, splits others by them, and then misses their picture; they are passed over"
LINK = "webdataset passes over links, and then misses the picture"
WHOLE = "webdataset stops reading at such an end without a word; samples would be lost"


def picture(number, size=(4, 4)):
    draw = numpy.random.default_rng(number)
    buffer = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=numpy.uint8), "RGB").save(buffer, "PNG")
    return buffer.getvalue()


def members_of(keys, extension="png"):
    return [member for i, key in enumerate(keys) for member in ((f"{key}.cls", str(i % 10).encode()), (f"{key}.{extension}", picture(i)))]


def tar(members, format=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as out:
        for member in members:
            info, data = (tarfile.TarInfo(member[0]), member[1]) if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return small(buffer.getvalue())


def small(data):
    """With two empty blocks at its end, and not ten kilobytes of them."""
    return data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % 512 + 1024)


def sparse(name, data):
    """GNU tar's oldest form of a file with a hole behind `data`: the pieces (offset, length) are in the header, at 386."""
    info = tarfile.TarInfo(name)
    info.type, info.size = b"S", len(data)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    pieces = b"".join(b"%011o\0" % number for number in (0, len(data), 4096, 0))
    header[386 : 386 + len(pieces)] = pieces
    header[483:495] = b"%011o\0" % 4096
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512)


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def read(shards):
    """Of several shards, one after the other."""
    keys, labels, pixels = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, data in shards.items():
            paths.append(os.path.join(folder, name))
            pathlib.Path(paths[-1]).write_bytes(data)
        data = (
            webdataset.WebDataset(sorted(paths), shardshuffle=False, empty_check=False)
            .decode("rgb8")
            .to_tuple("__key__", "jpg;jpeg;png", "cls")
        )
        for key, image, label in data:
            keys.append(key)
            labels.append(label)
            pixels.append(numpy.asarray(image))
    return {
        "keys": numpy.frombuffer("\n".join(keys).encode(errors="surrogateescape"), numpy.uint8),
        "pixels_labels": numpy.array(labels, numpy.int64),
        "pixels": numpy.stack(pixels).transpose(0, 3, 1, 2).copy(),
    }


def packed(shards):
    """The cases hold shards as gzip, since a tar is mostly zeros; the test unpacks them once."""
    return {name: gzip.compress(data, mtime=0) for name, data in shards.items()}


def case(name, data, like=None, **more):
    """`like`: a shard in which webdataset reads what we are to read in this one."""
    shards = data if isinstance(data, dict) else {"a.tar": data}
    return Case(name, packed(shards), values=read(shards if like is None else {"a.tar": like}), **more)


def refusal(name, data, words, why=""):
    return Case(name, packed(data if isinstance(data, dict) else {"a.tar": data}), refused=words, on_purpose=why)


def by_webdataset():
    for name, keys in {
        "numbers": ["000000", "000001", "000002"],
        "one": ["x"],
        "in folders": ["a/0", "a/1", "b.c/0", "d/e/f/0"],
        "spaces": ["a b", "a  c"],
    }.items():
        for kind in ("png", "PNG", "jpg"):
            buffer = io.BytesIO()
            writer = webdataset.TarWriter(buffer, mtime=0, encoder=False)
            for i, key in enumerate(keys):
                writer.write({"__key__": key, kind: picture(i), "cls": str(i).encode(), "json": b"{}"})
            writer.close()
            yield case(f"TarWriter, {name}, .{kind}", small(buffer.getvalue()))


def by_tarfile():
    long = "folder" * 20 + "/" + "name" * 30
    for format, word in ((tarfile.USTAR_FORMAT, "ustar"), (tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
        for name, keys in {
            "plain": ["0", "1"],
            "dots in folders": ["v1.0/0", "v1.0/1"],
            "./ before names": ["./0", "./a/1"],
            "spaces": ["a b/c d"],
            "100 characters": ["x" * 96],
            "long folder": ["f" * 90 + "/" + "n" * 60],
            "signs": ["a'b", 'c"d', "e=f", "g%h", "~i"],
        }.items():
            yield case(f"tarfile {word}, {name}", tar(members_of(keys), format))
        if word != "ustar":
            yield case(f"tarfile {word}, names of 240 characters", tar(members_of([long + "0", long + "1"]), format))
            yield case(f"tarfile {word}, other scripts", tar(members_of(["größe", "大/小"]), format))
    info = tarfile.TarInfo("0.png")
    info.pax_headers = {"comment": "c" * 600, "mtime": "1.5", "SCHILY.xattr.user.x": "1"}
    info.size = len(picture(0))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as out:
        out.addfile(info, io.BytesIO(picture(0)))
        label = tarfile.TarInfo("0.cls")
        label.size = 1
        out.addfile(label, io.BytesIO(b"7"))
    yield case("tarfile pax, with global and extended headers", small(buffer.getvalue()))
    whole = tar(members_of("ab"))
    yield case("without the two empty blocks at the end", whole[:-1024])
    yield case("with one empty block at the end", whole[:-512])
    yield case("with many empty blocks at the end", whole + bytes(20 * 512))
    yield case("two shards", {"a.tar": tar(members_of("ab")), "b.tar": tar(members_of("abc"))})
    yield case("a sample whose parts lie in two shards", {"a.tar": tar(members_of("ab")), "b.tar": tar(members_of("bc"))})


def by_programs():
    bsdtar = os.environ.get("BSDTAR") or shutil.which("bsdtar")
    if bsdtar is None:
        raise SystemExit("bsdtar is missing: install Debian's libarchive-tools, or set BSDTAR to it")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for i, key in enumerate(["000", "001", "sub/002", "größe/003", "l" * 90 + "/004"]):
            (root / f"{key}.cls").parent.mkdir(exist_ok=True)
            (root / f"{key}.cls").write_bytes(f"{i}\n".encode())
            (root / f"{key}.png").write_bytes(picture(i))
        for path in [*root.rglob("*"), root]:
            os.utime(path, (0, 0))
        for program, formats in {"tar": ("gnu", "oldgnu", "pax", "posix", "ustar"), bsdtar: ("gnutar", "ustar", "paxr")}.items():
            for format, start in [(format, start) for format in formats for start in (".", "*")]:
                if "ustar" in format and program == "tar":
                    words = ["--format=ustar"]
                else:
                    words = ["--format", format]
                words += ["--sort=name"] if program == "tar" else []
                words += ["--owner=0", "--group=0"] if program == "tar" else ["--uid", "0", "--gid", "0"]
                if format in ("pax", "posix") and program == "tar":
                    words += ["--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"]
                names = sorted(path.name for path in root.iterdir())
                if start == ".":
                    names = ["."] if program == "tar" else sorted(f"./{path.relative_to(root)}" for path in root.rglob("*.*"))
                command = [program, "-c", "-f", "-", "-b", "1", *words, "-C", folder, *names]
                done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
                if done.returncode != 0:
                    raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
                title = "GNU tar" if program == "tar" else "bsdtar"
                yield case(f"{title} {format}, {'folder' if start == '.' else 'names'}", done.stdout)


def labels():
    for text in ("3", " 3", "3 ", "3\n", "\t3\r\n", "+3", "03", "0003", "-0", "9", "0"):
        yield case(f"label {text!r}", tar([("0.cls", text.encode()), ("0.png", picture(0))]))
    for text in ("", " ", "1.0", "cat", "3 4", "0x3", "+-3", "--3", "3,", "\ufeff3", "1e0"):
        yield refusal(f"label {text!r}", tar([("0.cls", text.encode()), ("0.png", picture(0))]), "is not a whole number")
    for text in ("-1", "10", "1000", "9" * 30):
        yield refusal(
            f"label {text!r}",
            tar([("0.cls", text.encode()), ("0.png", picture(0))]),
            "not a class below num_classes 10",
            "a class beyond num_classes",
        )
    yield refusal("label '1_0'", tar([("0.cls", b"1_0"), ("0.png", picture(0))]), "is not a whole number", "Python's int reads 1_0 as 10")


def passed_over():
    clean = members_of("abc")
    like = tar(clean)
    for name in ("._x.cls", "._a.png", ".DS_Store", "README", "LICENSE", "__meta__", "__meta__/a.cls", "__x__", "a/README", "d/__meta__"):
        for place in (0, 1, 2, len(clean)):
            yield case(f"{name} at {place}", tar(clean[:place] + [(name, b"1")] + clean[place:]), like)
    inside = members_of(["d/a", "d/b"])
    for name in ("d/._a.png", "d/.DS_Store", "d/.hidden.cls"):
        for place in (0, 1, 2, 4):
            yield case(f"{name} at {place}", tar(inside[:place] + [(name, b"1")] + inside[place:]), tar(inside), on_purpose=SPLIT)
    for name in ("README.md", "classes.txt", "__meta__.json", "x.json"):
        for place in (0, 2, len(clean)):
            yield case(f"{name} at {place}", tar(clean[:place] + [(name, b"1")] + clean[place:]), like, on_purpose=SPLIT)
    for kind, word in (
        (tarfile.DIRTYPE, "folder"),
        (tarfile.FIFOTYPE, "pipe"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.SYMTYPE, "symbolic link"),
    ):
        yield case(f"a {word} within a sample", tar(clean[:1] + [special("z.d", kind, "a.png")] + clean[1:]), like)
    yield case(
        "more members of a sample",
        tar([("a.json", b"{}"), ("a.cls", b"1"), ("a.txt", b"x"), ("a.png", picture(0)), ("a.seg.png", picture(5))]),
    )
    for order in (("a.jpg", "a.png"), ("a.png", "a.jpg"), ("a.png", "a.jpeg"), ("a.jpeg", "a.png")):
        yield case(f"two pictures, {' before '.join(order)}", tar([(name, picture(i)) for i, name in enumerate(order)] + [("a.cls", b"2")]))


def refused():
    clean, dots = members_of("abc"), members_of([f"22.{i:02}" for i in range(5)])
    yield refusal(
        "names with dots",
        tar(dots),
        "its members end in .00.cls .00.png",
        "webdataset makes one sample of these, and then misses its picture",
    )
    yield refusal("names with dots: the remedy", tar(dots), "take the other dots out of the names")
    yield refusal("one member twice", tar(clean[:2] + clean[1:2]), "member 'a.png' is the second .png of this sample")
    yield refusal(
        "one extension twice, in other letters", tar([("a.png", picture(0)), ("a.PNG", picture(1)), ("a.cls", b"1")]), "is the second .png"
    )
    yield refusal("pictures before labels", tar(clean[1::2] + clean[::2]), "it has no .cls")
    yield refusal("no label", tar(clean[1::2]), "one after the other")
    yield refusal("no picture", tar(clean[::2]), "it has no .jpg, .jpeg or .png; its members end in .cls")
    yield refusal(
        "another picture format", tar([("a.webp", b"x"), ("a.cls", b"1")]), "its members end in .webp .cls", "webp is not decoded"
    )
    yield refusal(
        "nothing of use", tar([("README.md", b"x"), ("a.json", b"{}")]), "hold no sample to train on; 2 files passed over (.json 1, .md 1)"
    )
    for kind, word in ((tarfile.LNKTYPE, "hard"), (tarfile.SYMTYPE, "symbolic")):
        yield refusal(
            f"a {word} link as picture", tar(clean + [("d.cls", b"1"), special("d.png", kind, "a.png")]), "member 'd.png' is a link", LINK
        )
    yield refusal(
        "a sparse picture", sparse("d.png", picture(0)) + tar([("d.cls", b"1")]), "member 'd.png' is a sparse file", "it is read by offset"
    )
    whole = tar(clean)
    end = len(whole) - 1024
    for cut in (end - 600, end - 1100, end - 1536 + 300):
        yield refusal(f"cut off at {cut} of {end}", whole[:cut], "a.tar", WHOLE)
    damaged = bytearray(whole)
    damaged[1024 + 148] = ord("9")
    yield refusal("a header that fails its checksum", bytes(damaged), "a.tar: offset", WHOLE)
    for name, data in (
        ("gzip", gzip.compress(whole, mtime=0)),
        ("xz", lzma.compress(whole)),
        ("bzip2", bz2.compress(whole)),
    ):
        yield refusal(f"{name} by the name of a tar", data, "it is compressed", "it cannot be read in any order")
    for name in ("a.tar.gz", "a.tgz", "a.tar.zst", "a.tar.xz", "a.TAR.GZ"):
        yield refusal(f"{name} in the folder", {name: b"x", "b.tar": whole}, f"{name}: it is compressed", "it cannot be read in any order")
    yield refusal("no shard", {"readme.txt": b"x"}, "it holds no .tar file")
    yield refusal("no tar", b"hello" * 300, "a.tar: offset 0")


def cases():
    yield from by_webdataset()
    yield from by_tarfile()
    yield from by_programs()
    yield from labels()
    yield from passed_over()
    yield from refused()
