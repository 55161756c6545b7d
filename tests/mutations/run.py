#!/usr/bin/env python3
"""Breaks the code once for each feature and sees its tests go red: a test that cannot fail is a defect.

    ./dev mutations [ROW..]       all of tests/mutations/mutations.toml, or these rows
    ./dev mutations --list, --check   names them; only sees that each still fits its source

Each break is one edit of one file: the program with the tests is built and run, and the file is put back, also after Ctrl-C; after a
SIGKILL the next start puts it back. The tests must be green without the break, or their red would prove nothing. Results are kept in
build/mutations.json; once every break has one, docs/mutations.md is written from them.
Exit code: 0 where every break was seen, else 1.
"""
import argparse
import datetime
import html
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
RESULTS = ROOT / "build" / "mutations.json"
KEPT = ROOT / "build" / "mutation-original"  # the file under mutation: its path in the first line, then its text
TEST_SECONDS = 240
# Catch2 may write without end where two ranks' threads fail at once: it was not made for that. The tests' own files are smaller.
FILE_BYTES = 4 << 30
REPORT_BYTES = 16 << 20


def say(text):
    print(text, flush=True)


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


class Mutated:
    """The file with the break in it, for a `with`."""

    def __init__(self, mutation):
        self.path = ROOT / mutation["file"]
        self.original = self.path.read_text()
        text, places = squeezed(self.original)
        old, _ = squeezed(mutation["old"])
        n = text.count(old)
        if n != 1:
            raise SystemExit(f"mutations: {mutation['row']}: its old text occurs {n} times in {mutation['file']}, not once")
        first = text.index(old)
        begin, end = places[first], places[first + len(old) - 1] + 1
        self.broken = self.original[:begin] + mutation["new"] + self.original[end:]

    def __enter__(self):
        KEPT.write_text(str(self.path.relative_to(ROOT)) + "\n" + self.original)
        self.path.write_text(self.broken)

    def __exit__(self, *_):
        restore()


def restore():
    """Puts a file back that a run, this one or one that was killed, has broken."""
    if not KEPT.exists():
        return
    name, text = KEPT.read_text().split("\n", 1)
    (ROOT / name).write_text(text)
    KEPT.unlink()


def build(programs, log):
    return subprocess.run(["ninja", "-C", str(BUILD), "-j1", *programs], stdout=log, stderr=log).returncode == 0


def folder_of(program):
    found = [path for path in BUILD.glob(f"tests/**/{program}") if path.is_file()]
    if not found:
        raise SystemExit(f"mutations: there is no {program} in {BUILD.relative_to(ROOT)}: ./dev build first")
    return found[0]


def run_tests(program, prefix, log):
    """(how many ran, what went red): names of test cases, or how the program ended if it named none."""
    escaped = "".join("\\" + c if c in "[],\\" else c for c in prefix)
    report = BUILD / f"mutation-{os.getpid()}.xml"
    report.unlink(missing_ok=True)
    command = [str(folder_of(program)), escaped + "*", "-r", "xml", "-o", str(report)]
    child = subprocess.Popen(command, cwd=BUILD, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES)),
                             env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        code = child.wait(TEST_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)  # the group that this child leads
            child.wait()
    text = ""
    if report.exists():
        with open(report, "rb") as file:
            text = file.read(REPORT_BYTES).decode(errors="replace")
    report.unlink(missing_ok=True)
    try:
        cases = list(xml.etree.ElementTree.fromstring(text).iter("TestCase"))
        red = [case.get("name") for case in cases if case.find("OverallResult").get("success") != "true"]
    except (xml.etree.ElementTree.ParseError, AttributeError):  # it died in the middle of its report
        named = re.findall(r'<TestCase name="([^"]*)"', text)
        cases, red = [None], [html.unescape(name) for name in named[-1:]]
    if code is None:
        red.append(f"(no end after {TEST_SECONDS} s)")
    elif code < 0 and not red:
        red.append(f"(ended by {signal.Signals(-code).name})")
    elif code != 0 and not red:
        red.append(f"(exit code {code})")
    return len(cases), red


def one_line(text):
    return " ".join(text.split())


def keep(mutation, red, every):
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[f"{mutation['row']}: {mutation['says']}"] = {"red": red, "date": str(datetime.date.today())}
    RESULTS.write_text(json.dumps(known, indent=1))
    kept = [known.get(f"{mutation['row']}: {mutation['says']}") for mutation in every]
    if all(kept):
        write_table([(mutation, result["red"]) for mutation, result in zip(every, kept)], min(result["date"] for result in kept))


def write_table(results, date):
    lines = [
        "# Breaks that the tests see",
        "",
        "One small break for each feature of the main job, and the test that went red. `./dev mutations` repeats it (`./dev mutations D09`",
        f"for one row) from [mutations.toml](../tests/mutations/mutations.toml). No row was run before {date}.",
        "",
        "| row | file | break | test that went red |",
        "|---|---|---|---|",
    ]
    for mutation, red in results:
        shown = one_line(red[0]).replace("|", "\\|") if red else "**none**"
        more = f" (and {len(red) - 1} more)" if len(red) > 1 else ""
        lines.append(f"| {mutation['row']} | `{mutation['file']}` | {mutation['says']} | {shown}{more} |")
    (ROOT / "docs" / "mutations.md").write_text("\n".join(lines) + "\n")


def main():
    arguments = argparse.ArgumentParser(prog="./dev mutations")
    arguments.add_argument("rows", nargs="*", metavar="ROW")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--check", action="store_true", help="only that every break fits its source")
    options = arguments.parse_args()
    if not options.check:
        restore()
    with open(ROOT / "tests" / "mutations" / "mutations.toml", "rb") as file:
        every = tomllib.load(file)["mutation"]
    unknown = set(options.rows) - {mutation["row"] for mutation in every}
    if unknown:
        raise SystemExit(f"mutations: no break for {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in every if not options.rows or mutation["row"] in options.rows]
    if options.list:
        for mutation in chosen:
            say(f"{mutation['row']}  {mutation['file']}: {mutation['says']}")
        return 0
    for mutation in chosen:
        Mutated(mutation)  # every old text is there, before anything is built
    if options.check:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    programs = sorted({mutation["program"] for mutation in chosen})
    log_path = ROOT / "build" / "mutations.log"
    bad = []
    with open(log_path, "w") as log:
        if not build(programs, log):
            raise SystemExit(f"mutations: the code does not build before any break; see {log_path}")
        for program, prefix in sorted({(mutation["program"], mutation["tests"]) for mutation in chosen}):
            n, red = run_tests(program, prefix, log)
            if n == 0 or red:
                raise SystemExit(f"mutations: {program} '{prefix}*' without any break: {n} tests, red: {red}; see {log_path}")
        try:
            for mutation in chosen:
                started = time.monotonic()
                log.write(f"\n=== {mutation['row']}: {mutation['says']}\n")
                log.flush()
                with Mutated(mutation):
                    built = build([mutation["program"]], log)
                    red = run_tests(mutation["program"], mutation["tests"], log)[1] if built else []
                seen = built and bool(red)
                if not seen:
                    bad.append(mutation["row"])
                keep(mutation, red, every)  # at once: a run that is ended has not been for nothing
                outcome = f"red: {one_line(red[0])}" if seen else ("NOT SEEN" if built else "DOES NOT BUILD")
                say(f"{mutation['row']}  {mutation['file']}: {mutation['says']}\n     {outcome}  ({time.monotonic() - started:.0f} s)")
        finally:
            restore()
            build(programs, log)  # no broken program stays behind
    say(f"{len(chosen) - len(bad)} of {len(chosen)} breaks were seen" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
