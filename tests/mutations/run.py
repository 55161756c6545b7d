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
import json
import sys
import time
import tomllib

from mutated import ROOT, Mutated, begin, build, one_line, restore, run_tests, say

RESULTS = ROOT / "build" / "mutations.json"
TEST_SECONDS = 240


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


def with_break(mutation):
    path = ROOT / mutation["file"]
    original = path.read_text()
    text, places = squeezed(original)
    old, _ = squeezed(mutation["old"])
    n = text.count(old)
    if n != 1:
        raise SystemExit(f"mutations: {mutation['row']}: its old text occurs {n} times in {mutation['file']}, not once")
    first = text.index(old)
    begins, ends = places[first], places[first + len(old) - 1] + 1
    return Mutated(path, original[:begins] + mutation["new"] + original[ends:])


def run_rows(program, prefix, log):
    escaped = "".join("\\" + c if c in "[],\\" else c for c in prefix)
    return run_tests(program, [escaped + "*"], TEST_SECONDS, log)


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
        begin()
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
        with_break(mutation)  # every old text is there, before anything is built
    if options.check:
        return 0

    programs = sorted({mutation["program"] for mutation in chosen})
    log_path = ROOT / "build" / "mutations.log"
    bad = []
    with open(log_path, "w") as log:
        if not build(programs, log):
            raise SystemExit(f"mutations: the code does not build before any break; see {log_path}")
        for program, prefix in sorted({(mutation["program"], mutation["tests"]) for mutation in chosen}):
            n, red = run_rows(program, prefix, log)
            if n == 0 or red:
                raise SystemExit(f"mutations: {program} '{prefix}*' without any break: {n} tests, red: {red}; see {log_path}")
        try:
            for mutation in chosen:
                started = time.monotonic()
                log.write(f"\n=== {mutation['row']}: {mutation['says']}\n")
                log.flush()
                with with_break(mutation):
                    built = build([mutation["program"]], log)
                    red = run_rows(mutation["program"], mutation["tests"], log)[1] if built else []
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
