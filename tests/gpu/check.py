"""Runs what needs a GPU and prints the table of docs/gpu.md: check.py FOLDER, where test_gpu and gpu_rows are.

Each test has a process of its own: one that breaks the device does not break the next. Exit code 0: all that could run passed, and something
ran; 1: a test failed; 77: nothing ran, since there is no GPU.
"""
import datetime
import os
import pathlib
import re
import subprocess
import sys

TEST_SECONDS = 600
NOT_RUN = 77


def environment(folder):
    """The programs' own libraries after LibTorch's, which the caller names."""
    variables = dict(os.environ)
    own = folder / "lib"
    if own.is_dir():
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, [variables.get("LD_LIBRARY_PATH", ""), str(own)]))
    return variables


def run(command, folder):
    """(exit code, output); 124 past the deadline."""
    try:
        done = subprocess.run(command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=TEST_SECONDS)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode(errors="replace") + f"\nnot over after {TEST_SECONDS} s"
    except OSError as error:
        return 127, str(error)


def verdict(code, output):
    """What a test's end means: passed, not run (why), or failed (exit code)."""
    if code == 0:
        return "passed"
    if code == NOT_RUN:
        why = re.search(r"^NOT RUN: (.*)$", output, re.M)
        return f"not run: {why.group(1) if why else 'it does not say why'}"
    return f"FAILED (exit code {code})"


def exit_code(verdicts):
    if any(v.startswith("FAILED") for v in verdicts):
        return 1
    return 0 if any(v == "passed" for v in verdicts) else NOT_RUN


def test_names(folder):
    code, output = run([str(folder / "test_gpu"), "--list-test-names-only"], folder)
    names = [line for line in output.splitlines() if line.startswith("[")]
    if not names:  # Catch2's exit code of a list is its length
        sys.exit(f"check.py: {folder / 'test_gpu'} does not start ({code}): {output.strip()}")
    return names


def device():
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip().replace("\n", "; ") or "no GPU"
    except (OSError, subprocess.SubprocessError):
        return "no GPU (nvidia-smi does not run)"


def self_test():
    assert verdict(0, "") == "passed"
    assert verdict(77, "x\nNOT RUN: no GPU here\n") == "not run: no GPU here"
    assert verdict(1, "") == "FAILED (exit code 1)" and verdict(-11, "") == "FAILED (exit code -11)"
    assert exit_code(["passed", "not run: x"]) == 0
    assert exit_code(["not run: x"]) == 77
    assert exit_code(["passed", "FAILED (exit code 1)"]) == 1


def main():
    self_test()
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "test_gpu").is_file():
        sys.exit("usage: check.py FOLDER, where test_gpu and gpu_rows are")
    folder = pathlib.Path(sys.argv[1]).resolve()
    print(f"{datetime.date.today()}, {device()}\n")
    print("| test | |\n|---|---|")
    verdicts = []
    for name in test_names(folder):
        # A name begins with its row in brackets, which Catch2 would take for a tag.
        code, output = run([str(folder / "test_gpu"), re.sub(r"([\[\],\\*])", r"\\\1", name)], folder)
        verdicts.append(verdict(code, output))
        print(f"| {name} | {verdicts[-1]} |", flush=True)
        if verdicts[-1].startswith("FAILED"):
            print(output, file=sys.stderr)
    print("\n| measured | ours | other side | ratio | target |\n|---|---|---|---|---|", flush=True)
    code, output = run([str(folder / "gpu_rows")], folder)
    rows = [line for line in output.splitlines() if line.startswith("|")]
    print("\n".join(rows) if rows else f"| {verdict(code, output)} | | | | |")
    if code not in (0, NOT_RUN):
        print(output, file=sys.stderr)
        verdicts.append(verdict(code, output))
    if all(v.startswith("not run") for v in verdicts):
        print("\nNOTHING RAN: there is no GPU here. This is no pass.", file=sys.stderr)
    return exit_code(verdicts)


if __name__ == "__main__":
    sys.exit(main())
