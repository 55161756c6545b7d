#!/usr/bin/env python3
"""Every target of tests/fuzz is built, run by ./dev fuzz, has seeds and a row in docs/bad_input.md, and nothing else is: targets.py"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def words(pattern, file):
    found = re.search(pattern, (ROOT / file).read_text())
    return set(found[1].split()) if found else set()


def problems():
    sources = {path.stem for path in (ROOT / "tests/fuzz").glob("*.cpp") if "TROUPE_FUZZ_TARGET(" in path.read_text()}
    section = (ROOT / "docs/bad_input.md").read_text().partition("## What reads foreign bytes")[2]
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", section, re.M)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, ROOT / "tests/fuzz/make_corpus.py", folder], check=True)
        seeds = {path.name for path in pathlib.Path(folder).iterdir() if any(path.iterdir())}
    places = {
        "tests/fuzz/CMakeLists.txt": words(r"foreach\(target ([^)]+)\)", "tests/fuzz/CMakeLists.txt"),
        "fuzz_targets of dev": words(r"\nfuzz_targets=\(([^)]+)\)", "dev"),
        "tests/fuzz/make_corpus.py": seeds,
        "the table in docs/bad_input.md": {target for _, target in rows},
    }
    for place, named in places.items():
        yield from (f"{place} lacks {target}" for target in sorted(sources - named))
        yield from (f"{place} has {target}, and there is no tests/fuzz/{target}.cpp" for target in sorted(named - sources))
    fuzzed = (ROOT / "tests/fuzz/CMakeLists.txt").read_text()
    built = lambda file: f"../../{file}" in fuzzed or f"../../{file.rpartition('/')[0]}/*.cpp" in fuzzed
    yield from (f"docs/bad_input.md names {file}, which no target is built of" for file, _ in rows if not ((ROOT / file).exists() and built(file)))


found = list(problems())
print("\n".join(found))
sys.exit(1 if found else 0)
