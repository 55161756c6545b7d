"""Runs what needs a GPU and prints the tables of docs/gpu.md: check.py FOLDER, where test_gpu, gpu_rows and gpu_steps are.

Each test, and each group of rows, has a process of its own: one that breaks the device does not break the next. The rows beside PyTorch need
a Python with torch: the one that TROUPE_TORCH_PYTHON names, this one, or the checkout's .venv-bench. Exit code 0: all that could run
passed, and something ran; 1: something failed; 77: nothing ran, since there is no GPU.
"""
import datetime
import os
import pathlib
import re
import subprocess
import sys

import step_rows
import steps_test

TEST_SECONDS = 600
NOT_RUN = 77
ROWS = ("kernels", "ddp", "optimizer", "overlap", "abort")  # of gpu_rows
SMALL_MEMORY_MIB = 40_000  # a device with less gets smaller batches beside PyTorch


def run(command, folder, python=sys.executable):
    """(exit code, output); 124 past the deadline."""
    try:
        done = subprocess.run(command, env=step_rows.own_environment(folder, python), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
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


def test_names(folder, python):
    code, output = run([str(folder / "test_gpu"), "--list-test-names-only"], folder, python)
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


def memory_mib(device_text):
    """Of the smallest device; 0 where nothing is said."""
    return min((int(number) for number in re.findall(r"(\d+) MiB", device_text)), default=0)


def rows_beside_torch(memory):
    """Half the batches and less where they would not fit."""
    rows = [step_rows.Row(**vars(row)) for row in step_rows.ROWS]
    if 0 < memory < SMALL_MEMORY_MIB:
        for row in rows:
            row.batch = max(1, row.batch // 4)
    return rows


def self_test():
    step_rows.self_test()
    assert verdict(0, "") == "passed"
    assert verdict(77, "x\nNOT RUN: no GPU here\n") == "not run: no GPU here"
    assert verdict(1, "") == "FAILED (exit code 1)" and verdict(-11, "") == "FAILED (exit code -11)"
    assert exit_code(["passed", "not run: x"]) == 0
    assert exit_code(["not run: x"]) == 77
    assert exit_code(["passed", "FAILED (exit code 1)"]) == 1
    assert memory_mib("A, 580.1, 81559 MiB; B, 580.1, 24564 MiB") == 24564 and memory_mib("no GPU") == 0
    assert [row.batch for row in rows_beside_torch(81559)] == [row.batch for row in rows_beside_torch(0)] == [64, 8, 8, 64, 8] and [row.batch for row in rows_beside_torch(24564)] == [16, 2, 2, 16, 2]
    assert steps_test.CANNOT.search("error: rank 0: 'cuda' was asked for, and there is no GPU: there is no NVIDIA driver; look").group(0) == (
        "there is no GPU: there is no NVIDIA driver")


def tests(folder, python):
    """(name, command) of each."""
    for name in test_names(folder, python):
        # A name begins with its row in brackets, which Catch2 would take for a tag.
        yield name, [str(folder / "test_gpu"), re.sub(r"([\[\],\\*])", r"\\\1", name)]
    for name in steps_test.CASES:
        yield name, [sys.executable, steps_test.__file__, str(folder), "--device", "cuda", "--case", name]


def run_tests(folder, python):
    verdicts = []
    print("| test | |\n|---|---|", flush=True)
    for name, command in tests(folder, python):
        code, output = run(command, folder, python)
        verdicts.append(verdict(code, output))
        print(f"| {name} | {verdicts[-1]} |", flush=True)
        if verdicts[-1].startswith("FAILED"):
            print(output, file=sys.stderr)
    return verdicts


def stuck_row(folder):
    """(line, verdict)"""
    name, target = "abort of a collective that a rank never joins, to its end", "1 s"
    try:
        seconds = steps_test.abort_seconds(folder, "cuda")
        return f"| {name} | {seconds:.3f} s | | {seconds:.3f} | {target} |", "passed"
    except (steps_test.NotRun, AssertionError) as why:
        said = f"not run: {why}" if isinstance(why, steps_test.NotRun) else "FAILED"
        return f"| {name} | {said} | | | {target} |", said


def run_rows(folder, python, memory):
    verdicts = []
    print("\n| measured | ours | other side | ratio | target |\n|---|---|---|---|---|", flush=True)
    for group in ROWS:
        code, output = run([str(folder / "gpu_rows"), group], folder, python)
        verdicts.append(verdict(code, output))
        rows = [line for line in output.splitlines() if line.startswith("|")]
        print("\n".join(rows) if rows else f"| {group} | {verdicts[-1]} | | | |", flush=True)
        if verdicts[-1].startswith("FAILED"):
            print(output, file=sys.stderr)
    line, found = stuck_row(folder)
    print(line, flush=True)
    verdicts.append(found)
    beside = rows_beside_torch(memory)
    if all(v.startswith("not run") for v in verdicts) or not step_rows.has_torch(python):
        why = verdicts[0] if verdicts[0].startswith("not run") else f"not run: {python} has no whole PyTorch"
        for row in beside:
            print(f"| {row.name} | {why} | | | {step_rows.TARGET} |", flush=True)
            verdicts.append(why)
        return verdicts
    problems = step_rows.run(beside, folder, python, "cuda", 10)
    for each in problems:
        print(each, file=sys.stderr)
    verdicts.append(f"FAILED ({len(problems)} rows beside PyTorch)" if problems else "passed")
    return verdicts


def main():
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        return 0
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "test_gpu").is_file():
        sys.exit("usage: check.py FOLDER, where test_gpu, gpu_rows and gpu_steps are; check.py --self-test")
    folder, python = pathlib.Path(sys.argv[1]).resolve(), step_rows.torch_python() or sys.executable
    machine = device()
    print(f"{datetime.date.today()}, {machine}\n")
    verdicts = run_tests(folder, python) + run_rows(folder, python, memory_mib(machine))
    if all(v.startswith("not run") for v in verdicts):
        print("\nNOTHING RAN: there is no GPU here. This is no pass.", file=sys.stderr)
    return exit_code(verdicts)


if __name__ == "__main__":
    sys.exit(main())
