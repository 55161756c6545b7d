"""page_files.py PAGE FOLDER: the files and commands of a page, for a try on another machine: each Python block that begins with `# NAME.py`
under that name, other Python blocks as block1.py .., and the sh blocks' commands, one after the other, as block1.sh ..
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
from blocks import blocks_of  # noqa: E402


def main():
    page, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    counts = {"python": 0, "sh": 0}
    for block in blocks_of(page.name, page.read_text()):
        if block.language not in counts:
            continue
        name = re.match(r"# (\w+\.py)\n", block.text)
        if not name:
            counts[block.language] += 1
        suffix = {"python": "py", "sh": "sh"}[block.language]
        (folder / (name[1] if name else f"block{counts[block.language]}.{suffix}")).write_text(block.text)


if __name__ == "__main__":
    main()
