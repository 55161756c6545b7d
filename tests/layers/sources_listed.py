#!/usr/bin/env python3
"""Every .cpp is compiled by some CMakeLists.txt: what none names is a test that never runs. sources_listed.py [ROOT]

A list names a file by its path from the list's folder, or globs the file's folder. Prints one line per file that none names, and exits with
1 if there was one. Before that it judges a list with one sin.
"""
import pathlib
import re
import sys

FOLDERS = ("actors", "bench", "examples", "launch", "strategies", "tensor_io", "tests")
# Sources for other builds: a package's test, a project's text, what a linter tries, a target for hands.
NOT_OURS = ("tests/package/", "tests/lint/", "tests/fuzz/")


def unlisted(sources, lists):
    """sources: paths. lists: folder -> text of its CMakeLists.txt."""
    for source in sources:
        path = pathlib.PurePath(source)
        for folder, text in lists.items():
            below = pathlib.PurePath(folder) in path.parents
            inside = str(path.relative_to(folder)) if below else None
            if below and re.search(rf"(?<![\w/]){re.escape(inside)}(?!\w)", text):
                break
            if below and re.search(rf"GLOB[^)]*{re.escape(str(pathlib.PurePath(inside).parent))}", text):
                break
            # A list that lies beside; a function that is given a name without its ending.
            if re.search(rf"(?<![\w.]){re.escape(path.name)}(?!\w)", text) or (below and re.search(rf"[(\s]{re.escape(path.stem.removesuffix('_bench'))}\b", text)):
                break
        else:
            yield source


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    assert list(unlisted(["a/b_test.cpp", "a/c_test.cpp"], {"a": "add(x b_test.cpp)"})) == ["a/c_test.cpp"]
    lists = {str(path.parent.relative_to(root)): path.read_text() for folder in FOLDERS for path in (root / folder).rglob("CMakeLists.txt")}
    sources = [str(path.relative_to(root)) for folder in FOLDERS for path in sorted((root / folder).rglob("*.cpp"))]
    found = [source for source in unlisted(sources, lists) if not source.startswith(NOT_OURS)]
    for source in found:
        print(f"{source}: no CMakeLists.txt names it, so that it is never compiled")
    print(f"{len(sources)} sources, {len(found)} in no list")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
