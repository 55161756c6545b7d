"""The row snapshot: a step of fsdp with copies of the shards after each, beside the same without any."""
import json
import pathlib
import subprocess
import tempfile

from harness import DEADLINE_S, ROOT, in_turns, report

SNAPSHOT_TARGETS = {"snapshot": 1.03}
LAUNCH = ROOT / "build/release/launch/troupe"
GPT = ROOT / "build/release/examples/gpt/gpt"
WARM_UP, STEPS = 5, 15


def job(every):
    """ms of each step but the first ones: examples/gpt, 6 layers, width 512, two rank processes, 2 samples of 256 tokens each."""
    with tempfile.TemporaryDirectory(prefix="troupe-snapshot-") as folder:
        words = [str(LAUNCH), "launch", "--nproc", "2", "--run-dir", f"{folder}/launch", str(GPT), "--strategy", "fsdp", "--snapshot_every", every,
                 "--n_embd", "512", "--n_layer", "6", "--n_head", "8", "--block_size", "256", "--batch_size", "4", "--max_steps", str(WARM_UP + STEPS),
                 "--log_interval", "1", "--validate_every", "0", "--save_every", "-1", "--run_dir", f"{folder}/run", "--checkpoint_dir",
                 f"{folder}/checkpoints"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode != 0:
            raise SystemExit("bench: the job of the row snapshot failed:\n" + (done.stdout + done.stderr)[-3000:])
        lines = map(json.loads, pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        return [1e3 * line["time_metrics/end_to_end(s)"] for line in lines if line["kind"] == "train"][WARM_UP:]


def run_snapshot(row, rounds):
    times = in_turns(["1", "0"], rounds, job)
    return report(row, SNAPSHOT_TARGETS[row], times["1"], {"no snapshot": times["0"]}, "ms", {})
