"""check.py --self-test: a hang, a crash and a failure in the last step of each part, and nothing else is lost.

The programs are a script under many names. It prints a row, starts a child that would stay, and does what the file
`play` beside it says. Time does not pass here: a step that says that it hangs has used all that its part has. One
deadline is waited for.
"""
import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import check
import counters
import deadline
import parts
import results
import step_rows
import steps_test

FAKE = r"""#!/bin/sh
here=${0%/*}
case $* in
  *--query-gpu*) echo 'A, 580.1, 81559 MiB'; exit 0 ;;
  --list-test-names-only*) echo "[X01] gpu: first of $2"; echo "[X02] gpu: second of $2"; exit 2 ;;
esac
echo "| $TROUPE_GPU_CHECK_STEP | 1 ms | 2 ms | 0.5 | 1.0 |"
found=
while read -r kind step; do
  case $step in "$TROUPE_GPU_CHECK_STEP" | all) found=$kind; break ;; esac
done < "$here/play"
case $found in
  '') exit 0 ;;
  not_run) echo 'NOT RUN: needs 9 GPUs'; exit 77 ;;
  no_gpu) echo 'NOT RUN: no GPU here (x)'; exit 77 ;;
esac
ulimit -c 0
sleep 1000 &
echo $! >> "$here/processes"
echo $$ >> "$here/processes"
case $found in
  hang) : > "$here/hangs"; exec sleep 1000 ;;
  crash) kill -SEGV $$ ;;
  failure) echo 'it broke'; exit 3 ;;
esac
"""
PROGRAMS = ("test_gpu", "gpu_rows", "gpu_steps", "python", "nvidia-smi", "compute-sanitizer", "ncu")
ENDS = {"hang": "hang ({} s)", "crash": "crash (SIGSEGV)", "failure": "FAILED (exit code 3)"}


class Stage:
    """A folder of fake programs, and results beside it."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "gpu-check.jsonl"
        for name in PROGRAMS:
            (folder / name).write_text(FAKE)
            (folder / name).chmod(0o755)
        self.environment = {"PATH": f"{folder}:/usr/bin:/bin"}
        self.set({})

    def set(self, faults):
        """{part/step: kind}; a part/step of `all` is each."""
        (self.folder / "play").write_text("".join(f"{kind} {step}\n" for step, kind in faults.items()))
        for name in ("hangs", "processes"):
            (self.folder / name).unlink(missing_ok=True)

    def wait(self, child, seconds):
        """Until the process is over, or says that it never will be."""
        assert 0 < seconds <= parts.MOST_SECONDS, seconds
        while not deadline.is_over(child, 0.002):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "hangs").unlink()
                return False
        return True

    def run(self, chosen=parts.PARTS, call="x", commit="c", wait=None, **options):
        """(the parts' results, what the call printed)"""
        machine = check.Machine(self.folder, self.folder, self.folder / "python", self.environment, wait or self.wait)
        synced, before = [], len(results.read([self.file]))  # a disk's own time is not waited for
        origin = {"call": call, "date": "d", "commit": commit, "device": machine.device}
        found = results.Results(self.file, origin, synced.append)
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
            ends = check.run_parts(machine, chosen, found, **options)
        assert len(results.read([self.file])) - before == len(synced), "a line is not on the disk"
        return ends, printed.getvalue()

    def steps(self):
        """{part/step: (result, has a row)} as the disk has them."""
        lines = [line for line in results.read([self.file]) if "step" in line]
        return {f"{line['part']}/{line['step']}": (line["result"], bool(line["rows"])) for line in lines}

    def check_nothing_left(self):
        numbers = (self.folder / "processes").read_text().split()
        assert numbers and not [number for number in numbers if os.path.exists(f"/proc/{number}")], numbers


def steps_of(part):
    """Of the fake programs."""
    for step in part.steps:
        listed = [f"[X01] gpu: first of [{step.tag}]", f"[X02] gpu: second of [{step.tag}]"]
        yield from (f"{part.name}/{name}" for name in (listed if step.tag else [step.name]))


def play_each_fault(stage):
    all_steps = {step: ("passed", True) for part in parts.PARTS for step in steps_of(part)}
    for first in range(len(parts.PARTS)):  # three parts have one each, and so each part has each once
        faulty = {parts.PARTS[(first + i) % len(parts.PARTS)]: kind for i, kind in enumerate(ENDS)}
        last = {part: list(steps_of(part))[-1] for part in faulty}
        ends = {part: ENDS[kind].format(part.seconds) for part, kind in faulty.items()}
        stage.file.unlink(missing_ok=True)
        stage.set({last[part]: kind for part, kind in faulty.items()})
        found, _ = stage.run()
        assert stage.steps() == {**all_steps, **{last[part]: (end, True) for part, end in ends.items()}}, stage.steps()
        assert found == [ends.get(part, "passed") for part in parts.PARTS], found
        assert results.exit_code(found) == 1
        stage.check_nothing_left()


def part(name):
    return next(part for part in parts.PARTS if part.name == name)


def check_hang_in_the_middle(stage):
    """The rest of its part is named, and the next part runs; this deadline is a real one."""
    stage.file.unlink()
    stage.set({"two_ranks/" + parts.STUCK: "hang"})
    begin = time.monotonic()
    ends, _ = stage.run([part("two_ranks"), part("overlap")], wait=deadline.is_over, seconds=0.5)
    assert 0.5 <= time.monotonic() - begin < 30
    assert ends[0] == "hang (0.5 s)", ends
    found = stage.steps()
    assert found[f"two_ranks/{parts.LONELY}"] == ("not reached", False) and "overlap/rows: overlap" in found, found


def check_not_run(stage):
    stage.file.unlink()
    stage.set({"all": "not_run"})
    ends, _ = stage.run()
    assert set(ends) == {"not run: needs 9 GPUs"} and results.exit_code(ends) == 77, ends
    stage.set({"all": "no_gpu"})  # and nvidia-smi lists one
    assert results.exit_code(stage.run([part("overlap")])[0]) == 1
    stage.set({})
    tool = parts.Step("a tool", ("{no-such-tool}", "{test_gpu}"))
    assert stage.run([parts.Part("rows", 9, "", (tool, parts.rows("ddp")))])[0] == ["passed"]
    assert stage.steps()["rows/a tool"] == ("not run: no no-such-tool here", False)


def check_continue(stage):
    """Parts that passed are not run again, but for another commit; a budget leaves the rest."""
    stage.file.unlink()
    stage.set({"nccl/[X02] gpu: second of [nccl]": "failure"})
    some = parts.PARTS[:4]
    ends, printed = stage.run(some, budget=some[2].seconds - 0.1)
    assert ends == ["passed"] * 2 and "--continue: nccl ddp" in printed, printed
    assert stage.run(some, skips=True)[0] == ["passed", "passed", "FAILED (exit code 3)", "passed"]
    with open(stage.file, "a", encoding="utf-8") as file:
        file.write('{"part": "torn')
    stage.set({})
    ends, printed = stage.run(some, call="y", skips=True)
    assert ends == ["passed"] * 4, ends
    assert re.findall(r"^(\w+): passed before", printed, re.M) == ["machine", "kernels", "ddp"], printed
    assert stage.run(some, call="z", skips=True)[1].count("passed before") == 4
    for other in ("other", "c-dirty", "c-dirty", "unknown", "unknown"):
        assert "passed before" not in stage.run(some[:1], commit=other, skips=True)[1]
    text = results.table(results.read([stage.file]))
    assert "d, A, 580.1, 81559 MiB, commit c: kernels" in text, text
    assert "| nccl | [X02] gpu: second of [nccl] | passed |" in text and "FAILED" not in text, text


def check_end_of_a_call(stage):
    """A call that is ended from outside keeps what it had, and leaves no process."""
    stage.file.unlink()
    stage.set({"nccl/[X02] gpu: second of [nccl]": "hang"})
    command = [sys.executable, check.__file__, "--folder", stage.folder, "--out", stage.folder, "machine", "nccl"]
    call = subprocess.Popen(command, env={**os.environ, **stage.environment}, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    while not (stage.folder / "hangs").exists():
        assert call.poll() is None, "check.py ended before its step hung"
        time.sleep(0.002)
    call.send_signal(signal.SIGTERM)
    assert call.wait() == 128 + signal.SIGTERM
    stage.check_nothing_left()
    kept = {"machine/nvidia-smi", "machine/versions", "nccl/[X01] gpu: first of [nccl]"}
    assert set(stage.steps()) == kept, stage.steps()


def check_table_of_parts():
    assert all(0 < part.seconds <= parts.MOST_SECONDS for part in parts.PARTS)
    steps = [(part.name, step) for part in parts.PARTS for step in part.steps]
    assert len(set(parts.NAMES)) == len(parts.NAMES) and len({(name, step.name) for name, step in steps}) == len(steps)
    cases = [step.words[-1] for _, step in steps if "--case" in step.words]
    known = {**steps_test.CASES, **steps_test.ON_A_DEVICE}
    assert sorted(cases) == sorted(known), "each case of steps_test.py is in one part"
    wanted = [step.words[-1] for _, step in steps if "--row" in step.words]
    rows = [row.name for text in wanted for row in step_rows.ROWS if text in row.name]
    assert sorted(rows) == sorted(row.name for row in step_rows.ROWS), "each row beside PyTorch is in one part"
    docs = check.ROOT / "docs/gpu.md"
    for part in parts.PARTS if docs.is_file() else ():
        line = f"| `{part.name}` | {part.seconds} | {part.about} |\n"
        assert line in docs.read_text(), f"docs/gpu.md lacks {line}"
    tags = {step.tag for _, step in steps if step.tag}
    for source in pathlib.Path(check.__file__).parent.glob("*_gpu_test.cpp"):
        for name, own in re.findall(r'TEST_CASE\(\s*"([^"]*)",\s*"([^"]*)"', source.read_text()):
            named = tags & set(re.findall(r"\[(\w+)\]", own))
            assert len(named) == 1, f"{source.name}: {name}: the tags {own} name no part, or two"


def check_rows_beside_torch():
    """One row whose program is gone, or answers nonsense, costs no other."""
    found = step_rows.summary([1.0], [1.0], "x", 0.0)
    for failure in (SystemExit("x"), BrokenPipeError("x"), ValueError("x"), KeyError("losses")):
        ends = iter((failure, None))

        def measure(*_):
            if (end := next(ends)) is not None:
                raise end
            return found
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            problems = step_rows.run(step_rows.ROWS[:2], "", "", "cuda", 1, measure)
        ratios = [row[3] for row in results.rows_of(printed.getvalue())]
        assert len(problems) == 1 and ratios == ["", "1.000 (1.000 to 1.000)"], printed.getvalue()


def check_verdicts():
    verdict = results.verdict
    assert verdict(0, "", 1) == "passed" and verdict(1, "", 1) == "FAILED (exit code 1)"
    assert verdict(-11, "", 1) == "crash (SIGSEGV)" and verdict(None, "", 60) == "hang (60 s)"
    assert verdict(77, "x\nNOT RUN: no GPU here\n", 1) == "not run: no GPU here"
    assert results.is_broken(verdict(77, "NOT RUN: no GPU here", 1, has_gpu=True))
    assert verdict(77, "NOT RUN: needs 2 GPUs, this machine has 1", 1, has_gpu=True).startswith("not run")
    assert results.exit_code(["passed", "not run: x"]) == 0 and results.exit_code(["not run: x"]) == 77
    assert results.worst(["passed", "FAILED (exit code 1)", "hang (1 s)", "not reached"]) == "hang (1 s)"
    assert results.rows_of("| a | b |\n| a | 1 | 2 | 3 | 4 |\n+--+\n") == [["a", "1", "2", "3", "4"]]
    assert check.memory_mib("A, 580.1, 81559 MiB; B, 580.1, 24564 MiB") == 24564 and check.memory_mib("no GPU") == 0
    assert check.tests_in("[L03] gpu: a, b\n1 test case\n")[0].words[1] == r"\[L03\] gpu: a\, b"
    assert deadline.run(["/nothing/there"], {}, pathlib.Path(os.devnull), 1)[0] == 127


def main():
    step_rows.self_test()
    counters.self_test()
    steps_test.self_test()
    check_rows_beside_torch()
    check_verdicts()
    check_table_of_parts()
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(pathlib.Path(folder))
        play_each_fault(stage)
        check_hang_in_the_middle(stage)
        check_continue(stage)
        check_end_of_a_call(stage)
        check_not_run(stage)
    print(f"{len(ENDS)} faults in each of {len(parts.PARTS)} parts: each cost its part")
    return 0
