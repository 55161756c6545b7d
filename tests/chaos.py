#!/usr/bin/env python3
"""A job that --chaos hurts for minutes: the digits on 4 ranks. `./dev chaos [MINUTES] [MTBF_S] [SEED]` runs it.

Every step of the hurt job must be in its metrics once, with the loss that an undisturbed job prints for it, and its last checkpoint's
tensors must be the undisturbed job's (a fault changes no bit); no process may be left. Prints what the coordinator says of the goodput. Exit code 1 if something is wrong.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

TROUPE, PROGRAM = "build/release/launch/troupe", "build/release/examples/image_classifier/image_classifier"
RANKS = 4
CALIBRATION_STEPS = 400
STEPS_PER_EPOCH = 22


def train(folder, steps, chaos=None):
    """The exit code, what was printed, the losses by step, and the hashes of the last checkpoint's tensors."""
    words = [TROUPE, "launch", "--nproc", str(RANKS), "--run-dir", f"{folder}/run"]
    if chaos:
        words += ["--chaos", chaos]
    words += [PROGRAM, "--config", "examples/image_classifier/digits.toml", "--batch_size", "16", "--log_interval", "1", "--schedule", "constant",
              "--lr", "0.01", "--run_dir", f"{folder}/run", "--checkpoint_dir", f"{folder}/checkpoints", "--save_every", "200",
              "--epochs", str(steps // STEPS_PER_EPOCH + 1), "--max_steps", str(steps)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    losses = {}
    metrics = pathlib.Path(folder, "run/metrics.jsonl")
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        entry = json.loads(line)
        if entry["kind"] == "train":
            losses.setdefault(entry["step"], []).append(entry["loss_metrics/global_avg_loss"])
    return done.returncode, done.stdout, losses, tensors_of(f"{folder}/checkpoints")


def tensors_of(folder):
    """XXH3 of each file of tensors in the last checkpoint."""
    latest = pathlib.Path(folder, "latest")
    if not latest.exists():
        return {}
    manifest = json.loads(pathlib.Path(folder, latest.read_text().split()[0], "manifest.json").read_text())
    return {file["name"]: file["xxh3"] for file in manifest["files"] if file["name"].endswith(".safetensors")} | {"step": manifest["step"]}


def wrong(code, losses, steps, expected):
    """What is wrong, in a few lines."""
    found = []
    if code != 0:
        found.append(f"exit code {code}")
    missing = [step for step in range(1, steps + 1) if step not in losses]
    if missing:
        found.append(f"{len(missing)} steps are not in the metrics, the first is {missing[0]}")
    twice = [step for step, values in losses.items() if len(values) > 1]
    if twice:
        found.append(f"{len(twice)} steps are in the metrics more than once, the first is {twice[0]}")
    differ = [step for step in losses if step in expected and losses[step][0] != expected[step][0]]
    if differ:
        found.append(f"{len(differ)} losses differ from the undisturbed job's, the first is that of step {differ[0]}")
    return found


def left_over(folder):
    """Processes that name the folder on their command line."""
    left = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and folder.encode() in (entry / "cmdline").read_bytes():
                left.append(entry.name)
        except OSError:
            pass
    return left


def main():
    minutes, mtbf, seed = (float(word) for word in (sys.argv[1:] + ["2", "20", "7"][len(sys.argv) - 1:]))
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        code, text, _, _ = train(f"{folder}/pace", CALIBRATION_STEPS)
        if code != 0:
            sys.exit(text)
        steps = max(CALIBRATION_STEPS, int(CALIBRATION_STEPS * minutes * 60 / (time.monotonic() - start)))
        print(f"{steps} steps on {RANKS} ranks, undisturbed", flush=True)
        code, text, expected, tensors = train(f"{folder}/calm", steps)
        if code != 0:
            sys.exit(text)
        chaos = f"seed={seed:.0f},mtbf={mtbf}s,kinds=kill+stop+slow+net+disk"
        print(f"the same with --chaos {chaos}", flush=True)
        code, text, losses, hurt_tensors = train(f"{folder}/hurt", steps, chaos)
        print("\n".join(line for line in text.splitlines() if line.startswith("troupe: chaos: ")), flush=True)
        found = wrong(code, losses, steps, expected)
        if hurt_tensors != tensors:
            found.append(f"the last checkpoint differs: {hurt_tensors}, undisturbed {tensors}")
        time.sleep(1)
        if left := left_over(folder):
            found.append(f"processes are left: {', '.join(left)}")
        if found:
            print("\n".join(text.splitlines()[-40:]))
            sys.exit("; ".join(found))
        print(f"{len(losses)} steps, each once, with the undisturbed job's losses and last checkpoint to the last bit; no process is left")


if __name__ == "__main__":
    main()
