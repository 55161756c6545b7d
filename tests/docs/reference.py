#!/usr/bin/env python3
"""docs/reference/ is what the code says. reference.py [--write] BINARY_DIR [PAGE..]

Without --write the pages are made anew in memory and compared with those that are checked in; a difference is shown with the command that rewrites
the page. PAGE is cli, metrics, exit_codes or public_api; without it all are compared, and a short run is looked at: it writes the metrics that the
page lists, and no others. public_api needs doxygen: without it, and if it alone was asked for, the exit code is 77. With --write BINARY_DIR may be
left out if cli is not among the pages.
"""
import difflib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))
import cli_page  # noqa: E402
import exit_codes_page  # noqa: E402
import metrics_page  # noqa: E402
import public_api_page  # noqa: E402

FOLDER = ROOT / "docs/reference"
PAGES = {
    "cli": cli_page.page,
    "metrics": lambda _: metrics_page.page(),
    "exit_codes": lambda _: exit_codes_page.page(),
    "public_api": lambda _: public_api_page.page(),
}
MOST_SHOWN = 40  # lines of a difference


def difference(name, made):
    path = FOLDER / f"{name}.md"
    there = path.read_text() if path.exists() else ""
    lines = list(difflib.unified_diff(there.splitlines(), made.splitlines(), f"docs/reference/{name}.md", "what the code says", lineterm="", n=1))
    return "\n".join(lines[:MOST_SHOWN] + (["..."] if len(lines) > MOST_SHOWN else []))


def names_of_run(binaries):
    """(names in metrics.jsonl, the bytes of the event file) of 20 steps on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        program = binaries / "examples/image_classifier/image_classifier"
        subprocess.run([binaries / "launch/troupe", "launch", "--nproc", "2", "--run-dir", run, program, "--data", "digits", "--max_steps", "20", "--epochs",
                        "1", "--batch_size", "16", "--image_size", "8", "--in_channels", "1", "--log_interval", "10", "--save_every", "-1"],
                       check=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, timeout=60)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        events = b"".join(file.read_bytes() for file in (run / "tensorboard").iterdir())
    return {kind: {key for line in lines if line["kind"] == kind for key in line} for kind in ("train", "validation")}, events


def faults_of_run(binaries):
    kinds, known = metrics_page.kinds_of_metrics(), metrics_page.KEYS
    names, events = names_of_run(binaries)
    for kind, written in names.items():
        listed = {name for name, of in kinds.items() if of == kind}
        yield from (f"a run writes {name}, which docs/reference/metrics.md does not list" for name in sorted(written - listed - set(known)))
        yield from (f"a run does not write {name}, which docs/reference/metrics.md lists" for name in sorted(listed - written))
    yield from (f"the event file of a run lacks {name}" for name in kinds if name.encode() not in events)


def main():
    arguments = [word for word in sys.argv[1:] if word != "--write"]
    write = "--write" in sys.argv
    binaries = pathlib.Path(arguments.pop(0)).resolve() if arguments and arguments[0] not in PAGES else None
    chosen = arguments or list(PAGES)
    if unknown := [name for name in chosen if name not in PAGES]:
        sys.exit(f"there is no page {unknown[0]}: {', '.join(PAGES)}")
    if binaries is None and not write:
        sys.exit(__doc__)
    if "public_api" in chosen and shutil.which("doxygen") is None:
        print("docs/reference/public_api.md is left out: there is no doxygen")
        chosen.remove("public_api")
        if not chosen:
            return 77
    if binaries is None and "cli" in chosen:
        print("docs/reference/cli.md is left out: name the folder with the binaries, build/release")
        chosen.remove("cli")
    wrong = []
    for name in chosen:
        try:
            made = PAGES[name](binaries)
        except ValueError as error:
            wrong.append(f"docs/reference/{name}.md: {error}")
            continue
        if write:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.md").write_text(made)
        elif found := difference(name, made):
            folder = binaries.relative_to(ROOT) if binaries.is_relative_to(ROOT) else binaries
            wrong.append(f"{found}\nthis rewrites it: python3 tests/docs/reference.py --write {folder} {name}")
    if "metrics" in chosen and not write:
        wrong += faults_of_run(binaries)
    print("\n".join(wrong) or f"docs/reference: {', '.join(chosen)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
