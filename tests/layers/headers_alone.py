"""Every header compiles alone: headers_alone.py --compiler CXX --cache FOLDER [--include FOLDER].. [--root ROOT] [HEADER..]

LibTorch and CAF take 5 to 20 s to read, so headers are grouped by which of them they reach, themselves or through headers of ours, and
each group has a precompiled header of exactly those: nothing is visible to a header that it does not bring in itself. A header that
passed is not compiled again until it, or one that it includes, changes. With HEADERs only these are compiled.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDERS = ["tensor_io", "actors", "strategies", "launch", "troupe", "tests", "examples", "bench"]
HEAVY = ["torch/torch.h", "ATen/core/Tensor.h", "caf/all.hpp"]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


class Tree:
    """The headers of a checkout: path -> text."""

    def __init__(self, root):
        self.texts = {file.relative_to(root).as_posix(): file.read_text() for folder in FOLDERS for file in sorted((root / folder).rglob("*.hpp"))}

    @classmethod
    def of(cls, texts):
        tree = cls.__new__(cls)
        tree.texts = texts
        return tree

    def closure(self, header):
        """The headers of ours that it reaches, itself among them, and those of others."""
        ours, others, todo = {header}, set(), [header]
        while todo:
            path = todo.pop()
            for included in INCLUDE.findall(self.texts[path]):
                beside = path.rpartition("/")[0] + "/" + included
                target = included if included in self.texts else beside if beside in self.texts else None
                if target is None:
                    others.add(included)
                elif target not in ours:
                    ours.add(target)
                    todo.append(target)
        return ours, others

    def group(self, header):
        _, others = self.closure(header)
        group = [heavy for heavy in HEAVY if heavy in others]
        if "torch/torch.h" in group and "ATen/core/Tensor.h" in group:
            group.remove("ATen/core/Tensor.h")  # torch.h includes it
        return tuple(group)

    def key(self, header, command):
        digest = hashlib.sha256(" ".join(command).encode())
        for path in sorted(self.closure(header)[0]):
            digest.update(path.encode() + b"\0" + self.texts[path].encode() + b"\0")
        return digest.hexdigest()


def compile_alone(command, precompiled, header, root):
    """What the compiler says against a file that includes nothing but the header; empty if nothing."""
    flags = ["-include", str(precompiled), "-Winvalid-pch"] if precompiled else []
    result = subprocess.run([*command, *flags, "-fsyntax-only", "-x", "c++", "-"], input=f'#include "{header}"\n', cwd=root,
                            capture_output=True, text=True)
    return result.stderr if result.returncode != 0 else ""


def precompile(command, group, cache):
    header = cache / ("_".join(re.sub(r"\W", "_", name) for name in group) + ".hpp")
    header.write_text("".join(f"#include <{name}>\n" for name in group))
    subprocess.run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return header


def self_test(command):
    with tempfile.TemporaryDirectory() as folder:
        bad, good = pathlib.Path(folder) / "bad.hpp", pathlib.Path(folder) / "good.hpp"
        bad.write_text("#pragma once\nstd::vector<int> numbers();\n")
        good.write_text("#pragma once\n#include <vector>\nstd::vector<int> numbers();\n")
        assert compile_alone(command, None, bad, folder), "a header without its include passed"
        assert not compile_alone(command, None, good, folder), "a whole header failed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--cache", required=True, type=pathlib.Path)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("headers", nargs="*")
    arguments = parser.parse_args()
    command = [arguments.compiler, "-std=c++20", "-O0", "-w", f"-I{arguments.root}",
               f'-DTROUPE_SOURCE_DIR="{arguments.root}"', '-DTROUPE_PROGRAM=""', '-DTROUPE_RANK_PROBE=""']  # the tests' headers read files of theirs
    for folder in arguments.include:
        command += ["-isystem", folder]
    self_test(command)

    tree = Tree(arguments.root)
    passed = arguments.cache / "passed"
    passed.mkdir(parents=True, exist_ok=True)
    wanted = [header for header in arguments.headers if header in tree.texts] if arguments.headers else list(tree.texts)
    todo = [header for header in wanted if not (passed / tree.key(header, command)).exists()]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        groups = sorted({tree.group(header) for header in todo})
        precompiled = dict(zip(groups, pool.map(lambda group: precompile(command, group, arguments.cache) if group else None, groups)))
        complaints = pool.map(lambda header: compile_alone(command, precompiled[tree.group(header)], header, arguments.root), todo)
        for header, complaint in zip(todo, complaints):
            if complaint:
                print(f"{header} does not stand alone:\n{complaint}")
                failed += 1
            else:
                (passed / tree.key(header, command)).touch()
    for file in arguments.cache.glob("*.gch"):  # 100 MB each
        file.unlink()
    print(f"{len(wanted)} headers, {len(todo)} of them compiled in {len(groups)} groups, {failed} complaints")
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
