"""clang-tidy's checks on many files at once.

Files that the build compiles as one are looked at as one text, so that the headers, most of the work, are read once. clangd does it, unless
TOOL is clang-tidy: that one looks at every declaration of LibTorch too, takes five times as long, and finds a little more.

usage: lint.py TOOL COMPILE_COMMANDS_FOLDER OUTPUT_FOLDER JOBS MINUTES FILE..     MINUTES: 0, or when to begin no more
Prints FILE:LINE: [CHECK] WHAT; exit code 1 if there was something, 75 if time ran out before all files were looked at.
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time

INCLUDE = re.compile(r'^#include "(.*\.cpp)"$', re.MULTILINE)
FINDING = {
    "clangd": re.compile(r"^E\[[0-9:.]+\] (?P<what>\[[^]]*\]) Line (?P<line>\d+): (?P<more>.*)$"),
    "clang-tidy": re.compile(r"^\S*/batch-\d+\.cpp:(?P<line>\d+):(?P<what>\d+:) (?P<more>.*)$"),
}
# Whether a function is used it cannot tell here: it does not look into every instantiation of a template.
UNSURE = " -Wno-unused-function -Wno-unneeded-internal-declaration"
# clang does not know all of g++'s options, nor its precompiled header: each file reads what it includes itself.
NOT_FOR_CLANG = re.compile(r" (?:-fpch-preprocess|-Winvalid-pch|-Wno-stringop-overflow|-Wno-restrict)(?= )| -include \S*cmake_pch\.hxx")


def batches_of(commands, wanted, root):
    """(compile command, directory, files that are compiled together), of each of `wanted`; takes them out of `wanted`"""
    found = []
    for entry in commands:
        files = [entry["file"]]
        if "/Unity/" in entry["file"]:
            with open(entry["file"]) as unity:
                files = INCLUDE.findall(unity.read())
        files = [os.path.relpath(file, root) for file in files]
        if wanted.isdisjoint(files):
            continue
        wanted -= set(files)
        found.append((entry["command"], entry["directory"], files))
    return found


def write_batch(name, folder, batch):
    """One text of all files; returns its compile command and where each file's lines begin in it."""
    command, directory, files = batch
    # Where a .clang-tidy of its top folder holds for it.
    top = files[0].split("/")[0]
    path, starts, lines, included = os.path.join(folder, top, name), [], [], set()
    os.makedirs(os.path.join(folder, top), exist_ok=True)
    if os.path.exists(f"{top}/.clang-tidy"):
        shutil.copy(f"{top}/.clang-tidy", os.path.join(folder, top))
    for file in files:
        starts.append((len(lines), file))
        with open(file) as source:
            own = source.read().splitlines()
        # What a file before it includes is no duplicate.
        lines += ["" if line in included else line for line in own]
        included.update(line for line in own if line.startswith("#include"))
    with open(path, "w") as text:
        text.write("\n".join(lines) + "\n")
    beside = "".join(f" -iquote {os.path.dirname(os.path.abspath(file))}" for file in files)
    command = re.sub(r" -o \S+ -c \S+$", f"{UNSURE}{beside} -o {path}.o -c {path}", NOT_FOR_CLANG.sub("", command))
    return {"directory": directory, "command": command, "file": path}, starts


def lint(tool, path, folder, starts):
    command = {
        "clangd": ["clangd", f"--check={path}", "--check-lines=1-1", f"--compile-commands-dir={folder}", "--clang-tidy", "--log=error"],
        "clang-tidy": ["clang-tidy", "-p", folder, "--quiet", path],
    }[tool]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in done.stdout.splitlines():
        finding = FINDING[tool].match(line)
        if finding:
            at = int(finding["line"])
            begin, file = max(start for start in starts if start[0] < at)
            line = f"{file}:{at - begin}: {finding['what']} {finding['more']}"
        lines.append(line)
    return lines if done.returncode != 0 else []


def main():
    tool, commands, folder, jobs, minutes, *files = sys.argv[1:]
    folder, until = os.path.abspath(folder), time.monotonic() + 60 * float(minutes) if float(minutes) > 0 else float("inf")
    with open(os.path.join(commands, "compile_commands.json")) as file:
        unknown = set(files)
        batches = batches_of(json.load(file), unknown, os.getcwd())
    if unknown:
        print("not compiled here, so not looked at: " + " ".join(sorted(unknown)), file=sys.stderr)
    os.makedirs(folder, exist_ok=True)
    work, entries = [], []
    for i, batch in enumerate(batches):
        entry, starts = write_batch(f"batch-{i}.cpp", folder, batch)
        entries.append(entry)
        work.append((entry["file"], starts))
    with open(os.path.join(folder, "compile_commands.json"), "w") as file:
        json.dump(entries, file)
    late, failed = 0, False

    def run(item):
        return lint(tool, item[0], folder, item[1]) if time.monotonic() < until else None

    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        for item, lines in zip(work, pool.map(run, work)):
            if lines is None:
                late += len(item[1])
            elif lines:
                failed = True
                print("\n".join(lines), flush=True)
    total = sum(len(starts) for _, starts in work)
    print(f"{total - late} of {total} files looked at", file=sys.stderr)
    sys.exit(1 if failed else 75 if late else 0)


main()
