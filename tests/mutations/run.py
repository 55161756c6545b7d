#!/usr/bin/env python3
"""Breaks the code once for each feature and sees its tests go red: a test that cannot fail is a defect.

    ./dev mutations [ROW..]       all of tests/mutations/mutations.toml, or these rows
    ./dev mutations --list, --check   names them; only sees that each still fits its source and has tests
    ./dev mutations --seconds N SEED  a share, begun within N seconds: by turns a row whose source a late commit has changed, and any other

A share takes rows that a linked program has shown before: docs/mutations.md says which. It keeps no results.

Each break is one edit of one file, and the tests are run with it. Mostly the file is compiled alone and linked into a program beside the built one
(linked.py). Where that shows nothing, or a header is broken, the file itself is edited, the program is built, and the file is put back, also after
Ctrl-C; after a SIGKILL the next start puts it back. The tests must be green without the break, or their red would prove nothing. Results are kept in
build/mutations.json; once every break has one, docs/mutations.md is written from them.
Exit code: 0 where every break was seen, else 1.
"""
import argparse
import concurrent.futures
import datetime
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import tomllib

from linked import Linked, can_be_linked
from mutated import ROOT, Mutated, begin, build, end_running, folder_of, one_line, restore, run_tests, say

RESULTS = ROOT / "build" / "mutations.json"
TABLE = ROOT / "docs" / "mutations.md"
LINKED_PROGRAM, WHOLE_BUILD = "linked program", "whole build"  # in TABLE
TEST_SECONDS = 240
LATE_COMMITS = 20
lock = threading.Lock()  # of RESULTS and the screen


def squeezed(text):
    """The text without what a formatter may move: white space, and the quotes where one literal goes on in the next. And the place in
    `text` of each character that is left."""
    kept, places = [], []
    for place, character in enumerate(text):
        if character.isspace():
            continue
        if character == '"' and kept and kept[-1] == '"':
            kept.pop()
            places.pop()
            continue
        kept.append(character)
        places.append(place)
    return "".join(kept), places


def broken(mutation):
    """The text of the file with the break in it."""
    original = (ROOT / mutation["file"]).read_text()
    text, places = squeezed(original)
    old, _ = squeezed(mutation["old"])
    n = text.count(old)
    if n != 1:
        raise SystemExit(f"mutations: {mutation['row']}: its old text occurs {n} times in {mutation['file']}, not once")
    first = text.index(old)
    begins, ends = places[first], places[first + len(old) - 1] + 1
    return original[:begins] + mutation["new"] + original[ends:]


def names_of_tests():
    """Of all programs, from their sources."""
    texts = (path.read_text() for path in (ROOT / "tests").glob("**/*.cpp"))
    literals = re.compile(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found)).replace('\\"', '"') for text in texts for found in literals.findall(text)]


def check_names(mutations):
    """Else a test that has got another name is found only by a whole run."""
    names = names_of_tests()
    for mutation in mutations:
        begin = mutation["tests"]
        found = (begin[1:] in name if begin.startswith("*") else name.startswith(begin) for name in names)
        if not any(found):
            raise SystemExit(f"mutations: {mutation['row']}: no test has the name '{begin}*'")


def run_rows(path, prefix, log):
    escaped = "".join("\\" + c if c in "[],\\" else c for c in prefix)
    return run_tests(path, [escaped + "*"], TEST_SECONDS, log)


def try_linked(mutation, log):
    """(whether it builds, what went red), of a program that is linked beside the built one. How a program ended counts in place only."""
    with Linked(mutation["program"], mutation["file"], broken(mutation), log) as program:
        red = run_rows(program, mutation["tests"], log)[1] if program else []
        return program is not None, [name for name in red if not name.startswith("(")]


def check_linked(program, source, mutations, log):
    """Without a break the same tests must be green in such a program."""
    with Linked(program, source, (ROOT / source).read_text(), log) as unbroken:
        for tests in sorted({mutation["tests"] for mutation in mutations}):
            if unbroken is None or run_rows(unbroken, tests, log)[1]:
                return False
    return True


def try_in_place(mutation, log):
    """The same with the file itself broken, and all programs that have it in them."""
    with Mutated(ROOT / mutation["file"], broken(mutation)):
        built = build([mutation["program"]], log, os.cpu_count())
        return built, run_rows(folder_of(mutation["program"]), mutation["tests"], log)[1] if built else []


def key_of(mutation):
    return f"{mutation['row']}: {mutation['says']}"


def keep(mutation, red, way, every):
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[key_of(mutation)] = {"red": red, "way": way, "date": str(datetime.date.today())}
    RESULTS.write_text(json.dumps(known, indent=1))
    kept = [known.get(key_of(mutation)) for mutation in every]
    if all(kept):
        write_table(list(zip(every, kept)), min(result["date"] for result in kept))


def write_table(results, date):
    lines = [
        "# Breaks that the tests see",
        "",
        "One small break for each feature of the main job, and the test that went red. `./dev mutations` repeats it (`./dev mutations D09`",
        f"for one row) from [mutations.toml](../tests/mutations/mutations.toml). No row was run before {date}.",
        "",
        "| row | file | break | in a | test that went red |",
        "|---|---|---|---|---|",
    ]
    for mutation, result in results:
        red = result["red"]
        shown = one_line(red[0]).replace("|", "\\|") if red else "**none**"
        more = f" (and {len(red) - 1} more)" if len(red) > 1 else ""
        lines.append(f"| {mutation['row']} | `{mutation['file']}` | {mutation['says']} | {result.get('way', '')} | {shown}{more} |")
    TABLE.write_text("\n".join(lines) + "\n")


def seen_linked():
    """Rows that a linked program has shown, by their keys."""
    cells = (line.split(" | ") for line in TABLE.read_text().splitlines() if f" | {LINKED_PROGRAM} | " in line)
    return {f"{row.removeprefix('| ')}: {says}" for row, _, says, *_ in cells}


def changed_late():
    log = subprocess.run(["git", "log", f"-{LATE_COMMITS}", "--format=", "--name-only"], cwd=ROOT, capture_output=True, text=True)  # none in an archive
    return set(log.stdout.split())


def in_turns(mutations, seed):
    """Drawn by the seed: a row of a source that was changed late, any other one, and so on."""
    late = changed_late()
    drawn = random.Random(seed).sample(mutations, len(mutations))
    pools = [[m for m in drawn if m["file"] in late], [m for m in drawn if m["file"] not in late]]
    while any(pools):
        for pool in pools:
            if pool:
                yield pool.pop(0)


def judge_share(every, seconds, seed, log):
    """The exit code. A row that was begun is judged, however long it takes."""
    known = seen_linked()
    rows = in_turns([mutation for mutation in every if key_of(mutation) in known], seed)
    end = time.monotonic() + seconds
    outcomes = []

    def work():
        while time.monotonic() < end:
            with lock:
                mutation = next(rows, None)
            if mutation is None:
                return
            built, red = try_linked(mutation, log)
            with lock:
                outcomes.append(built and bool(red))
                outcome = f"red: {one_line(red[0])}" if built and red else ("NOT SEEN" if built else "DOES NOT BUILD")
                say(f"{mutation['row']}  {mutation['file']}: {mutation['says']}\n     {outcome}")

    with Workers(os.cpu_count()) as workers:
        for done in [workers.submit(work) for _ in range(os.cpu_count())]:
            done.result()
    say(f"{sum(outcomes)} of {len(outcomes)} breaks were seen, drawn by {seed} from {len(known)}")
    return 0 if outcomes and all(outcomes) else 1


class Workers(concurrent.futures.ThreadPoolExecutor):
    """After Ctrl-C what waits is dropped, and what runs is ended."""

    def __exit__(self, kind, *_):
        if kind is not None:
            end_running()
        self.shutdown(wait=True, cancel_futures=True)


def main():
    arguments = argparse.ArgumentParser(prog="./dev mutations")
    arguments.add_argument("rows", nargs="*", metavar="ROW")
    arguments.add_argument("--seconds", type=int, metavar="N", help="a share, drawn by the seed that stands in place of rows")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--check", action="store_true", help="only that every break fits its source, and has tests")
    options = arguments.parse_args()
    if not options.check:
        begin()
    with open(ROOT / "tests" / "mutations" / "mutations.toml", "rb") as file:
        every = tomllib.load(file)["mutation"]
    if options.seconds is not None:
        if len(options.rows) != 1:
            raise SystemExit("mutations: --seconds N asks for one seed: ./dev mutations --seconds 60 1")
        with open(ROOT / "build" / "mutations.log", "w") as log:
            return judge_share(every, options.seconds, options.rows[0], log)
    unknown = set(options.rows) - {mutation["row"] for mutation in every}
    if unknown:
        raise SystemExit(f"mutations: no break for {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in every if not options.rows or mutation["row"] in options.rows]
    if options.list:
        for mutation in chosen:
            say(f"{mutation['row']}  {mutation['file']}: {mutation['says']}")
        return 0
    for mutation in chosen:
        broken(mutation)  # every old text is there, before anything is built
    check_names(chosen)
    if options.check:
        return 0

    programs = sorted({mutation["program"] for mutation in chosen})
    log_path = ROOT / "build" / "mutations.log"
    seen = set()
    with open(log_path, "w") as log, Workers(os.cpu_count()) as workers:
        if not build(programs, log):
            raise SystemExit(f"mutations: the code does not build before any break; see {log_path}")
        pairs = sorted({(mutation["program"], mutation["tests"]) for mutation in chosen})
        for (program, prefix), (n, red) in zip(pairs, workers.map(lambda pair: run_rows(folder_of(pair[0]), pair[1], log), pairs)):
            if n == 0 or red:
                raise SystemExit(f"mutations: {program} '{prefix}*' without any break: {n} tests, red: {red}; see {log_path}")

        def judge(mutation, try_it, way, last):
            started = time.monotonic()
            built, red = try_it(mutation, log)
            if built and red:
                seen.add(key_of(mutation))
            elif not last:
                return
            with lock:
                keep(mutation, red, way, every)  # at once: a run that is ended has not been for nothing
                outcome = f"red: {one_line(red[0])}" if built and red else ("NOT SEEN" if built else "DOES NOT BUILD")
                say(f"{mutation['row']}  {mutation['file']}: {mutation['says']}\n     {outcome}  ({time.monotonic() - started:.0f} s)")

        def judge_linked(item):
            (program, source), mutations = item
            if check_linked(program, source, mutations, log):
                for mutation in mutations:
                    judge(mutation, try_linked, LINKED_PROGRAM, last=False)

        groups = {}
        for mutation in chosen:
            if can_be_linked(mutation["file"]):
                groups.setdefault((mutation["program"], mutation["file"]), []).append(mutation)
        list(workers.map(judge_linked, groups.items()))
        try:
            for mutation in chosen:  # what other programs of a test, or inline functions, have to have in them
                if key_of(mutation) not in seen:
                    judge(mutation, try_in_place, WHOLE_BUILD, last=True)
        finally:
            restore()
            if not build(programs, log):
                say(f"mutations: the last build failed, and broken programs may be left; see {log_path}")
    bad = [mutation["row"] for mutation in chosen if key_of(mutation) not in seen]
    say(f"{len(chosen) - len(bad)} of {len(chosen)} breaks were seen" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
