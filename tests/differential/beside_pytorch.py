#!/usr/bin/env python3
"""The reference beside Python's PyTorch: beside_pytorch.py PROGRAM. Jobs, one a line of JSON on standard input; for each a line of JSON on standard
output: the verdict and the milliseconds. PROGRAM is `differential`, of which --reference gives the reference's outcome."""

import json
import math
import pathlib
import subprocess
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from pytorch import outcome_of, plain  # noqa: E402


def floor_of(share):
    return 1e-12 if share < 1e-6 else share * 1e-2


def apart(a, b, share=0.0, floor=0.0):
    """What is not finite must be the same on both sides."""
    a, b = float(a), float(b)
    if not (math.isfinite(a) and math.isfinite(b)):
        return str(a) != str(b)
    return abs(a - b) > share * max(abs(a), abs(b)) + floor


def difference_of_steps(share, found, right):
    if found.keys() != right.keys():
        return f"there are {len(found)} steps, PyTorch has {len(right)}"
    for number, step in right.items():
        numbers = {"committed": (), "samples": (), "rate": (1e-12,)}
        if step["committed"]:
            numbers["loss"] = numbers["norm"] = share, floor_of(share)
            if share < 1e-6:
                numbers["correct"] = ()
        for name, bounds in numbers.items():
            if apart(found[number][name], step[name], *bounds):
                return f"step {number}: {name} is {found[number][name]}, PyTorch's is {step[name]}"
    return ""


def difference_of_states(share, found, right):
    if found.keys() != right.keys():
        return f"there are states after steps {', '.join(found)}, PyTorch's after {', '.join(right)}"
    for step, state in right.items():
        names = found[step].keys() ^ state.keys()
        if names:
            return f"after step {step}: only one side has {', '.join(sorted(names)[:3])}"
        for name, values in state.items():
            mine, of = found[step][name], f"after step {step}: {name}"
            if len(mine) != len(values):
                return f"{of} has {len(mine)} elements, PyTorch's has {len(values)}"
            largest = max((abs(value) for value in values if not isinstance(value, str)), default=0)
            floor = share * max(largest, 1e-6 if share < 1e-6 else max(share, 1e-2))
            for i, (a, b) in enumerate(zip(mine, values)):
                if apart(a, b, floor=floor):
                    return f"{of}[{i}] is {a}, PyTorch's is {b}"
    return ""


def difference(found, right):
    share = found["tolerance"]
    text = difference_of_steps(share, found["steps"], right["steps"]) or difference_of_states(share, found["states"], right["states"])
    if not text and apart(found["held_out_loss"], right["held_out_loss"], share, floor_of(share)):
        text = f"the held-out loss is {found['held_out_loss']}, PyTorch's is {right['held_out_loss']}"
    return text


def verdict(job, line, reference):
    right = plain(outcome_of(job))
    if "not_run" in right:
        return "not run: " + right["not_run"]
    reference.stdin.write(line)
    reference.stdin.flush()
    found = json.loads(reference.stdout.readline())
    return "the reference threw: " + found["error"] if "error" in found else difference(found, right)


def main():
    torch.set_num_threads(1)
    reference = subprocess.Popen([sys.argv[1], "--reference"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in sys.stdin:
        began = time.monotonic()
        try:
            text = verdict(json.loads(line), line, reference)
        except Exception as error:  # of a job, so that the next one is run
            text = f"threw: {type(error).__name__}: {error}"
        if reference.poll() is not None:
            sys.exit(f"the reference ended with exit code {reference.returncode}")
        print(json.dumps({"verdict": text, "ms": 1000 * (time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
