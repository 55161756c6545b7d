"""What a step costs on the host, and where its time goes: host_rows.py FOLDER [--device cuda|cpu] [--keep FOLDER] [--tiny]

FOLDER has gpu_steps. Rows: phases of a step by `profile`, the step with both kinds of vote, and the launch of a small all-reduce, alone and of
two processes. The traces of the phases (trace.json, for Perfetto) stay in --keep.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import step_rows

PHASES = ("forward", "backward", "forward and backward", "wait for gradients", "wait for the device", "vote", "optimizer")
WARM_STEPS, TRACED_STEPS = 40, 10
LAUNCHES = 300
JOBS = (("mlp", 64, "ddp", "fp32"), ("mlp", 4096, "ddp", "fp32"), ("gpt124m", 8, "ddp", "bf16"), ("gpt124m", 8, "fsdp", "bf16"))
TINY_JOBS = (("gpt_tiny", 2, "ddp", "fp32"), ("gpt_tiny", 2, "fsdp", "fp32"))


def row(name, ours, other="", ratio=""):
    print(f"| {name} | {ours} | {other} | {ratio} | |", flush=True)


def ask(folder, lines, last, **options):
    """The answers to `lines` of a gpu_steps of its own."""
    program = step_rows.ours(folder, **options)
    answers = [program.ask(line, last) for line in lines]
    program.quit()
    return answers


def phases_of(trace):
    """{phase: median ms of a step}, by a trace.json."""
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith("ProfilerStep#")]
    found = {"step": statistics.median(end - begin for begin, end in steps) / 1e3}
    for phase in PHASES:
        of_step = [sum(event["dur"] for event in events if event["name"] == phase and event.get("cat") in ("phase", "wait")
                       and begin <= event["ts"] < end) for begin, end in steps]
        if any(of_step):
            found[phase] = statistics.median(of_step) / 1e3
    return found


def phase_rows(folder, name, keep, options):
    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="troupe-gpu-") as run:
        ask(folder, [f"block {WARM_STEPS + TRACED_STEPS + 2}"], "step_ms",
            **{**options, "--profile": f"steps={WARM_STEPS}:{WARM_STEPS + TRACED_STEPS},operators=off", "--run-dir": f"{run}/run"})
        kept = keep / f"{name.replace(', ', '-').replace(' ', '_')}.json"
        kept.write_bytes(pathlib.Path(run, "run/trace.json").read_bytes())
    found = phases_of(kept)
    step = found.pop("step")
    for phase, ms in found.items():
        row(f"{phase}, of a step of {name}", f"{ms:.3f} ms", f"{step:.3f} ms", f"{ms / step:.3f}")


def vote_row(folder, name, steps, options):
    waiting, late = (float(ask(folder, ["block 10", f"block {steps}"], "step_ms", **{**options, "--vote": vote})[1]["step_ms"][0])
                     for vote in ("step", "late"))
    row(f"step of {name} with a late vote, beside one that waits", f"{late:.3f} ms", f"{waiting:.3f} ms", f"{late / waiting:.3f}")


def launch_rows(folder, device):
    share = {"--share-device": "true"} if device == "cuda" else {}
    tiny = {"job": "gpt_tiny", "batch": 1, "strategy": "ddp", "precision": "fp32", "device": device}
    for name, more in (("one process", {}), ("two processes on one device", {"--ranks": 2, **share})):
        us = min(float(answer["launch_us"][0]) for answer in ask(folder, [f"launches {LAUNCHES}"] * 3, "launch_us", **tiny, **more))
        row(f"launch of an all-reduce of 1,000 numbers, {name}", f"{us:.1f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="troupe-gpu-") as folder:
        for job, batch, strategy, precision in TINY_JOBS if options.tiny else JOBS:
            name = f"{strategy}, {job}, {precision}, batch {batch}"
            shape = {"job": job, "batch": batch, "strategy": strategy, "precision": precision, "device": options.device}
            phase_rows(options.folder, name, options.keep or pathlib.Path(folder), shape)
            if strategy == "ddp":
                vote_row(options.folder, name, 5 if options.tiny else 40, shape)
        launch_rows(options.folder, options.device)


if __name__ == "__main__":
    sys.exit(main())
