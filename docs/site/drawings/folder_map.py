"""The folders, each with its parts and what it may include; from the tree, whose includes have to agree."""
import pathlib
import re

from . import boxes

ROOT = pathlib.Path(__file__).resolve().parents[3]
LAYERS = ("troupe", "launch", "strategies", "actors", "tensor_io")  # each may include those after it
LIBRARIES = {"launch": "launch/network: CAF's io, OpenSSL", "actors": "CAF's core", "tensor_io": "LibTorch, Gloo, NCCL, CUDA, cereal"}
WIDTH, LEFT, RIGHT = 860, 20, 560


def agree():
    for place, folder in enumerate(LAYERS):
        for file in (ROOT / folder).rglob("*.[hc]pp"):
            for name in re.findall(r'^#include "(\w+)/', file.read_text(), re.MULTILINE):
                if name in LAYERS[:place]:
                    raise SystemExit(f"folder_map: {file.relative_to(ROOT)} includes {name}, which is above it")


def purpose(folder):
    """The first sentence of its README."""
    words = (ROOT / folder / "README.md").read_text().split("\n\n")[0].split("\n", 1)[1]
    return re.match(r"(.*?[^A-Z])\.(?:\s|$)", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words.replace("\n", " ")))[1].strip()


def parts_of(folder):
    return sorted(path.name for path in (ROOT / folder).iterdir() if path.is_dir() and any(path.rglob("*.[hc]pp")))


def draw():
    agree()
    out, y, above = [], 16, None
    for name, x, what in (("examples", 20, "what a user would write"), ("tests", 204, "mirrors the folders"), ("bench", 388, "measures, beside PyTorch")):
        out += [boxes.box(x, y, 172, 46, "grey"), boxes.text(x + 12, y + 20, name, bold=True), boxes.text(x + 12, y + 37, what, size=12, colour=boxes.FAINT)]
        out.append(boxes.arrow(x + 86, y + 46, x + 86, y + 72))
    y += 72
    for folder in LAYERS:
        what, inside = boxes.wrapped(purpose(folder), 74), boxes.wrapped(", ".join(parts_of(folder)), 80)
        inside = [line for line in inside if line]
        height = 34 + 17 * len(what) + 17 * len(inside)
        if above:
            out.append(boxes.arrow((LEFT + RIGHT) / 2, above, (LEFT + RIGHT) / 2, y))
        out += [boxes.box(LEFT, y, RIGHT - LEFT, height, "gold" if folder == "troupe" else "blue"), boxes.text(LEFT + 12, y + 21, folder, bold=True, size=14)]
        for number, line in enumerate(what):
            out.append(boxes.text(LEFT + 12, y + 40 + 17 * number, line, size=12.5))
        for number, line in enumerate(inside):
            out.append(boxes.text(LEFT + 12, y + 40 + 17 * (len(what) + number), line, size=12, colour=boxes.FAINT))
        if folder in LIBRARIES:
            middle = y + height / 2
            out += [boxes.box(RIGHT + 40, middle - 19, WIDTH - RIGHT - 56, 38, "grey"),
                    boxes.text(RIGHT + 40 + (WIDTH - RIGHT - 56) / 2, middle + 4, LIBRARIES[folder], "middle", 12), boxes.arrow(RIGHT, middle, RIGHT + 40, middle)]
        above = y + height
        y += height + 24
    out += [boxes.arrow(RIGHT + 40, 40, RIGHT + 76, 40), boxes.text(RIGHT + 84, 44, "may include", size=12, colour=boxes.FAINT)]
    return boxes.svg(WIDTH, y - 8, "The folders of the sources: each may include those below it", out)
