"""Extracts of runs, for the figures of the pages.

    take.py loss UNDISTURBED KILLED >docs/data/loss_with_kill.json     two run folders: the same command, once with a killed rank
    take.py step RUN >docs/data/step_timeline.json                     a run folder with trace.json: rank 0's step of median length
"""
import json
import os
import pathlib
import re
import statistics
import sys

PHASES = ("data", "forward", "backward", "wait for gradients", "vote", "optimizer")


def source_of(run):
    """When, on what and by which command a run was made."""
    noted = json.loads((run / "run.json").read_text())
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1]
    config, program = noted["config"], pathlib.Path(noted["command"][0]).name
    return {"time": noted["started"], "commit": noted["git_commit"], "machine": f"{cpu}, virtual machine, {os.cpu_count()} cores, other work running",
            "versions": noted["versions"], "ranks": noted["world_size"], "backend": noted["backend"], "strategy": noted["strategy"],
            "seed": config["seed"], "batch_size": config["batch_size"], "command": " ".join(["troupe launch --nproc", str(noted["world_size"]), program, *noted["command"][1:]])}


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def loss(undisturbed, killed):
    def curve(run):
        return [record["loss_metrics/global_avg_loss"] for record in records(run) if record["kind"] == "train"]

    change = [record for record in records(killed) if record.get("event") == "membership"][1]
    return {"source": source_of(killed), "fault": f"TROUPE_FAULT=slot=1,step={change['step']},at=backward",
            "steps_done": change["step"], "stalled_ms": change["stalled(ms)"], "membership": change["text"],
            "undisturbed": curve(undisturbed), "killed": curve(killed)}


def step(run):
    trace = json.loads((run / "trace.json").read_text())
    events, overlap = trace["traceEvents"], trace["otherData"]["ranks"][0]["overlap"]
    thread = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    spans = [(thread[event["pid"], event["tid"]], event) for event in events if event["ph"] == "X" and event["pid"] == 0]
    steps = [event for name, event in spans if name == "compute" and event["name"].startswith("ProfilerStep")]
    middle = statistics.median(event["dur"] for event in steps)
    chosen = min(steps, key=lambda event: abs(event["dur"] - middle))

    def milliseconds(event):
        return [event["name"].replace("all_reduce ", "").strip("()"), round((event["ts"] - chosen["ts"]) / 1e3, 3), round(event["dur"] / 1e3, 3)]

    inside = [(name, event) for name, event in spans if chosen["ts"] <= event["ts"] < chosen["ts"] + chosen["dur"]]
    buckets = [event for name, event in inside if name == "reducer" and event["name"].startswith("all_reduce")]
    return {"source": source_of(run), "step": chosen["name"], "steps": len(steps), "overlap_of_all_steps": round(overlap, 4), "step_ms": round(chosen["dur"] / 1e3, 3),
            "compute": [milliseconds(event) for name, event in inside if name == "compute" and event["name"] in PHASES],
            "reducer": [[*milliseconds(event), event["args"]["numel"]] for event in buckets]}


def main():
    taken = {"loss": loss, "step": step}[sys.argv[1]](*map(pathlib.Path, sys.argv[2:]))
    lines = ",\n".join(f'  {json.dumps(key)}: {json.dumps(value)}' for key, value in taken.items())
    print("{\n" + lines + "\n}")


if __name__ == "__main__":
    main()
