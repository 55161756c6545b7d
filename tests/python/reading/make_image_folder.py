"""Trees of pictures, and the files (paths, one a line) and labels that torchvision's ImageFolder finds in them. With parts,
ImageFolder reads `train` and `held_out` each from a folder of its own; without, both are what it finds in the whole, every fifth file apart.
"""

import os
import pathlib
import tempfile

import numpy
import torchvision
from torchvision.datasets import ImageFolder

from cases import Case

TOOL = f"torchvision {torchvision.__version__}"
HIDDEN = "torchvision takes hidden files and folders: copies by editors and file managers, which are no pictures of their own"
FORMAT = "torchvision reads .ppm, .bmp, .pgm, .tif, .tiff and .webp too; Troupe passes over them, and refuses a folder of mostly such"
PARTS = "torchvision makes classes of all folders; names of parts of a data set are parts"


def found(root, folder):
    samples = ImageFolder(os.path.join(root, folder)).samples
    return [os.path.relpath(path, root) for path, _ in samples], [label for _, label in samples]


def laid(paths, links, root):
    for path in paths:
        target = pathlib.Path(root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x")
    for path, leads_to in links.items():
        link = pathlib.Path(root, path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(leads_to)


def values(paths, links, folders):
    with tempfile.TemporaryDirectory() as root:
        laid(paths, links, root)
        parts = [found(root, folder) for folder in folders]
        if folders == [""]:
            names, labels = parts[0]
            parts = [
                tuple([each for i, each in enumerate(part) if (i % 5 == 4) == held_out] for part in (names, labels))
                for held_out in (False, True)
            ]
    entry = {}
    for part, (names, labels) in zip(("train", "held_out"), parts):
        if names:
            entry[part] = numpy.frombuffer("\n".join(names).encode(), numpy.uint8)
            entry[f"{part}_labels"] = numpy.array(labels, numpy.int64)
    return entry


def case(name, paths, links=None, folders=("",), like=None, on_purpose="", settings=None):
    """`like`: the paths among these that we read."""
    links = links or {}
    files = {path: b"x" for path in paths}
    return Case(name, files, values(like or paths, links, list(folders)), on_purpose=on_purpose, links=links, settings=settings or {})


def refusal(name, paths, words, on_purpose="", links=None):
    return Case(name, {path: b"x" for path in paths}, refused=words, on_purpose=on_purpose, links=links or {})


def pictures(*classes, count=6, extension="jpg"):
    return [f"{name}/{i}.{extension}" for name in classes for i in range(count)]


def plain():
    for count in range(1, 13):
        yield case(f"two classes of {count}", pictures("cat", "dog", count=count))
    for names in (
        ["cat"],
        ["10", "9", "1"],
        ["B", "a", "C"],
        ["ä", "z", "Z"],
        ["a b", "a", "a-b", "a.b"],
        ["n01", "n02", "n10"],
        ["0", "00"],
        ["_", "-", "+"],
    ):
        yield case(f"classes {names}", pictures(*names))
    for extension in ("jpg", "JPG", "jpeg", "JPEG", "Jpeg", "png", "PNG", "pNg"):
        yield case(f"extension .{extension}", pictures("cat", "dog", extension=extension))
    for name in ("a b.jpg", "a.b.jpg", "a.png.jpg", "jpg.jpg", "ä.jpg", "~a.jpg", "#1.jpg", "a.txt.png", "a..jpg"):
        yield case(f"file {name}", pictures("cat", "dog") + [f"cat/{name}"])
    for name in ("a.txt", "README", "Thumbs.db", "a.jpg.txt", "jpg", "ajpg", "a.jpg~", "a.json", "a.jpg.part", "a.npy"):
        yield case(f"beside the pictures: {name}", pictures("cat", "dog") + [f"cat/{name}", f"dog/more/{name}"])
    for name in ("labels.csv", "picture.jpg", "README.md", ".DS_Store"):
        yield case(f"beside the classes: {name}", pictures("cat", "dog") + [name])


def nested():
    yield case("folders in classes", pictures("cat/a", "cat/b", "dog", "dog/x/y/z"))
    yield case(
        "files before and behind a folder's name",
        ["cat/b.jpg", "cat/a/z.jpg", "cat/a.jpg", "cat/a-b/1.jpg", "cat/a.d/1.jpg", "cat/c.jpg", "dog/1.jpg"],
    )
    yield case("folders named as pictures", ["cat/a.jpg/b.jpg", "cat/c.jpg", "dog/1.jpg"])
    yield case("a class whose pictures are all deeper", pictures("cat/a/b/c", "dog"))
    for depth in (1, 4, 10):
        yield case(f"{depth} folders deep", pictures("cat" + "/d" * depth, "dog"))


def linked():
    elsewhere = pictures("all") + ["cat/1.png", "dog/1.png"]
    held = {"cat/l.jpg": "../dog/1.png"}
    yield case("a linked file", ["cat/1.png", "dog/1.png"], held)
    yield case("a linked folder in a class", pictures("cat", "dog"), {"cat/more": "../dog"})
    yield case("a linked class", pictures("cat"), {"dog": "cat"})
    yield case("a class of linked files", ["cat/1.png", "cat/2.png"], {"dog/a.png": "../cat/1.png", "dog/b.png": "../cat/2.png"})
    yield case("a link to nothing, listed", elsewhere, {"cat/z.jpg": "nowhere.jpg"})
    yield refusal(
        "links in a circle",
        pictures("cat", "dog"),
        "more than 16 deep",
        "torchvision walks until the system stops it",
        {"cat/more": "../cat"},
    )


def hidden():
    real = pictures("cat", "dog")
    for name in (
        "cat/.DS_Store",
        "cat/._0.jpg",
        "cat/.jpg",
        "dog/.ipynb_checkpoints/0-checkpoint.jpg",
        ".git/a.jpg",
        ".ipynb_checkpoints/x.png",
    ):
        yield case(f"hidden: {name}", [*real, name], like=real, on_purpose=HIDDEN)


def formats():
    for extension in ("ppm", "bmp", "pgm", "tif", "tiff", "webp", "BMP"):
        real = pictures("cat", "dog")
        yield case(f"some .{extension}", [*real, *pictures("cat", count=5, extension=extension)], like=real, on_purpose=FORMAT)
        mixed = [*pictures("cat", "dog", count=2), *pictures("cat", "dog", count=3, extension=extension)]
        yield refusal(f"mostly .{extension}", mixed, f"(.{extension.lower()} 6), 4 read; convert them to JPEG or PNG", FORMAT)
        only = [*pictures("cat"), *pictures("dog", extension=extension)]
        yield refusal(
            f"a class of .{extension}", only, f"it holds no .jpg, .jpeg or .png file; 6 files passed over (.{extension.lower()} 6)", FORMAT
        )
    real = pictures("cat", "dog")
    yield case("some .gif and .heic", [*real, "cat/a.gif", "dog/b.heic"])


def parts():
    for train, held_out in (
        ("train", "val"),
        ("train", "valid"),
        ("train", "validation"),
        ("train", "dev"),
        ("train", "test"),
        ("train", "testing"),
        ("train", "eval"),
        ("training", "testing"),
        ("training", "validation"),
        ("Train", "Test"),
        ("TRAIN", "VAL"),
        ("Training", "Evaluation"),
    ):
        paths = pictures(f"{train}/cat", f"{train}/dog", f"{held_out}/dog")
        entry = case(f"{train} and {held_out}", paths, folders=(train, held_out), on_purpose=PARTS)
        entry.values["held_out_labels"] += 1  # ImageFolder counts the held-out folder's classes anew: dog is 1 in train
        entry.on_purpose = PARTS + "; labels are those of train"
        yield entry
    both = pictures("train/cat", "train/dog", "val/cat", "val/dog")
    yield case("test beside train and val", both + pictures("test/cat"), folders=("train", "val"), on_purpose=PARTS)
    yield case("test without classes beside train and val", both + ["test/1.jpg"], folders=("train", "val"), on_purpose=PARTS)
    yield case("others beside train and val", both + pictures("meta", "cat"), folders=("train", "val"), on_purpose=PARTS)
    yield case("train alone", pictures("train/cat", "train/dog"), folders=("train",), on_purpose=PARTS)
    yield case("trains are a class", pictures("train", "bus"))
    yield case("tests are a class", pictures("test", "control"))
    yield case("words of parts within names of classes", pictures("test_tube", "beaker"))
    yield case("words that begin as names of parts", pictures("valley", "testudo", "training-shoes", "devil"))
    for names, words in {
        ("test", "val"): "its folders test and val have names of parts",
        ("train", "test"): "its folders test and train have names of parts",
        ("seg_train", "seg_test"): "its folders seg_test and seg_train have",
        ("training_set", "test_set"): "test_set and training_set have",
        ("val",): "its folders val have names of parts",
        ("train2017", "val2017"): "train2017 and val2017",
    }.items():
        yield refusal(f"parts without classes: {' '.join(names)}", pictures(*names), words, PARTS)
    yield refusal(
        "training set and test set with classes",
        pictures("training_set/cat", "training_set/dog", "test_set/cat"),
        "name them train and val",
        PARTS,
    )
    yield refusal("two names of the held-out part", both + pictures("valid/cat"), "both val and valid", PARTS)
    yield refusal("two names of the part to train on", both + pictures("training/cat"), "both train and training", PARTS)
    yield refusal("a class that train does not know", both + pictures("val/cow"), "class 'cow' is not in train/")


def refused():
    yield refusal("a file alone", ["a.jpg"], "it holds no folders")
    yield refusal(
        "a class without pictures",
        [*pictures("cat"), "dog/readme.txt"],
        "dog: it holds no .jpg, .jpeg or .png file; 1 file passed over (.txt 1)",
    )
    yield refusal(
        "a held-out class without pictures", [*pictures("train/cat", "train/dog", "val/cat"), "val/dog/x.txt"], "val/dog: it holds no"
    )
    yield refusal("a class of hidden pictures", [*pictures("cat"), "dog/._0.jpg"], "1 file passed over (hidden 1)", HIDDEN)


def cases():
    for kind in (plain, nested, linked, hidden, formats, parts, refused):
        yield from kind()
