#!/usr/bin/env python3
"""Breaks the code in small ways, drawn at random, and sees whether a test or ./dev differential notices.

    ./dev mutants SEED [N]                N mutants (60): SEED, number and sources decide which
    ./dev mutants SEED [N] --list         only prints them
    ./dev mutants SEED --again NUMBER     judges this one anew

A mutant is judged by the test programs of its folder, then by drawn jobs (--seeds, 400); the first that goes red has seen it. What does not
compile is drawn again. Results are kept in build/random-mutants.json; a run of the same commit goes on where it stopped.
Exit code: 0 where at least 90 % were seen, 1 where fewer were, 2 where nothing could be judged.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
import tomllib

import draw
from mutated import BUILD, MEMORY_BYTES, ROOT, Mutated, begin, build, folder_of, one_line, restore, run_bounded, run_tests, say

RESULTS = ROOT / "build" / "random-mutants.json"
LOG = ROOT / "build" / "mutants.log"
DIFFERENTIAL = ROOT / "tests" / "differential" / "run.py"
PROGRAM_SECONDS = 600  # as in tests/CMakeLists.txt: for a program, and for one of its cases
CASE_SECONDS = 120
JOBS = max(1, min(os.cpu_count(), MEMORY_BYTES >> 30))  # of half the memory: 2 GB for each
NOT_BUILT = "does not compile"


def stop(text):
    print(f"mutants: {text}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        stop(f"{message}; ./dev mutants SEED [N] [--list | --again NUMBER] [--seeds COUNT]")


def programs_of(file):
    """Test programs, first those that CMake makes of the folder's tests, or of tests that belong to none; then those that run.py has for the
    folder's breaks. Not those that start processes."""
    top, folder = file.split("/")[:2]
    found, waiting = [], set()
    for path in sorted((ROOT / "tests").glob("*/CMakeLists.txt")):
        for name, words, files in re.findall(r"^\s*troupe_test\((\w+)((?: [A-Z]+)*)\s(.*?)\)$", path.read_text(), re.M | re.S):
            folders = {part.split("/")[0] for part in re.findall(r"[\w./]+\.cpp", files) if not part.startswith("../")}
            if "PROCESSES" in words.split():
                waiting.add(name)
            elif path.parent.name == top and any(part == folder or not (ROOT / top / part).is_dir() for part in folders):
                found.append(name)
    with open(ROOT / "tests" / "mutations" / "mutations.toml", "rb") as toml:
        found += sorted({row["program"] for row in tomllib.load(toml)["mutation"] if row["file"].startswith(f"{top}/{folder}/")})
    return [name for name in dict.fromkeys(found) if name not in waiting]


def commit():
    name = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    return name.stdout.strip() or stop("this is no git checkout, and results are kept by commit")


def red_tests(program, log):
    return run_tests(folder_of(program), ["--abort"], PROGRAM_SECONDS, log, TROUPE_CASE_SECONDS=str(CASE_SECONDS))[1]


def red_seed(seeds, first):
    """`seed N: fault` of the first job that goes wrong, or None."""
    path = BUILD / "mutants-differential.txt"
    with open(path, "w") as output:
        code = run_bounded([sys.executable, str(DIFFERENTIAL), str(seeds), str(first), "--stop"], None, output)
    text = path.read_text()
    if code == 0:
        return None
    return (re.search(r"^seed \d+: .*", text, re.M) or re.search(r".*\Z", text.rstrip() or f"exit code {code}"))[0]


def judge(mutant, first, seeds, results, log):
    """(who has seen it, what it said); who is None for a survivor. Quick programs come first."""
    path = ROOT / mutant.file
    text = path.read_text()
    with Mutated(path, text[:mutant.begin] + mutant.new + text[mutant.end:]):
        for program in sorted(programs_of(mutant.file), key=lambda name: (results.get(name) or {"seconds": 0})["seconds"]):
            if not build([program], log, JOBS):
                return NOT_BUILT, ""
            red = red_tests(program, log)
            if red:
                return program, red[0]
        if not build(["differential"], log, JOBS):
            return NOT_BUILT, ""
        fault = red_seed(seeds, first)
        return ("differential", fault) if fault else (None, "")


def clipped(text, length=110):
    text = one_line(text) or "nothing"
    return text if len(text) <= length else text[:length] + " .."


def shown(number, mutant):
    return f"{number:3}  {mutant.file}:{mutant.line}  {mutant.kind}  {clipped(mutant.old)}  ->  {clipped(mutant.new)}"


class Results:
    """What is known, by the mutant; of other commits nothing is."""

    def __init__(self):
        self.commit = commit()
        self.known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def get(self, key):
        found = self.known.get(key)
        return found if found and found["commit"] == self.commit and "dirty" not in self.commit else None

    def keep(self, key, **values):
        self.known[key] = {"commit": self.commit, **values}
        whole = RESULTS.with_suffix(".new")
        whole.write_text(json.dumps(self.known, indent=1))
        whole.replace(RESULTS)


def check_without(programs, results, log):
    """What is red without a mutant would prove nothing."""
    if not build([*programs, "differential"], log, JOBS):
        stop(f"the code does not build without a mutant; see {LOG.relative_to(ROOT)}")
    for program in programs:
        if not results.get(program):
            started = time.monotonic()
            red = red_tests(program, log)
            if red:
                stop(f"{program} is red without a mutant: {one_line(red[0])}")
            results.keep(program, seconds=time.monotonic() - started)


def judge_first_that_compiles(number, mutants, options, results, log):
    for mutant in mutants:
        key = json.dumps([options.seed, number, *mutant._replace(begin=0, end=0)])
        result = None if options.again else results.get(key)
        if not result:
            log.write(f"\n=== {shown(number, mutant)}\n")
            log.flush()
            started = time.monotonic()
            who, what = judge(mutant, (1000 * options.seed + number) * options.seeds, options.seeds, results, log)
            results.keep(key, who=who, what=what, seconds=round(time.monotonic() - started))
            result = results.known[key]
        if result["who"] != NOT_BUILT:
            seen = f"seen by {result['who']}: {one_line(result['what'])}" if result["who"] else "SURVIVED"
            say(f"{shown(number, mutant)}  {seen} in {result['seconds']} s")
            return mutant, result
    stop(f"none of the mutants that {number} could be compiles; see {LOG.relative_to(ROOT)}")


def main():
    arguments = Parser(prog="./dev mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("seed", type=int)
    arguments.add_argument("n", type=int, nargs="?", default=60)
    arguments.add_argument("--list", action="store_true", help="only print them")
    arguments.add_argument("--again", type=int, metavar="NUMBER", help="judge this one anew")
    arguments.add_argument("--seeds", type=int, default=400, metavar="COUNT", help="of drawn jobs for a mutant that no test sees")
    options = arguments.parse_args()
    if options.seed < 0 or min(options.n, options.seeds, 1 if options.again is None else options.again) < 1:
        stop("SEED is at least 0; N, NUMBER and COUNT are at least 1")
    begin()
    drawn = list(draw.draw(options.seed, options.again or options.n))
    if options.list:
        for number, mutants in drawn:
            say(shown(number, mutants[0]))
        return 0
    if not (BUILD / "build.ninja").exists():
        stop(f"there is no {BUILD.relative_to(ROOT)}: ./dev build first")
    if options.again:
        drawn = drawn[-1:]

    results, judged = Results(), []
    with open(LOG, "w") as log:
        programs = sorted({program for _, mutants in drawn for program in programs_of(mutants[0].file)})
        check_without(programs, results, log)
        try:
            for number, mutants in drawn:
                judged.append((number, *judge_first_that_compiles(number, mutants, options, results, log)))
        finally:
            restore()
            build([*programs, "differential"], log, JOBS)  # no broken program stays behind
    # A job that is at fault without the mutant, too, has not seen it.
    for number, mutant, result in judged:
        seed = re.match(r"seed (\d+):", result["what"])
        if seed and red_seed(1, int(seed[1])):
            say(f"{number:3}  seed {seed[1]} is at fault without the mutant, too")
            result["who"] = None

    counts = collections.Counter(result["who"] or "SURVIVED" for _, _, result in judged)
    say("\nseen by")
    for who, count in counts.most_common():
        say(f"{count:5}  {who}")
    for number, mutant, result in judged:
        if not result["who"]:
            say(f"SURVIVED {shown(number, mutant)}")
    seen = len(judged) - counts["SURVIVED"]
    say(f"{seen} of {len(judged)} mutants were seen")
    return 0 if 10 * seen >= 9 * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
