#!/usr/bin/env python3
"""A job that --chaos hurts for minutes, on 4 ranks. `./dev chaos [MINUTES] [MTBF_S] [SEED] [digits|light|sharded] [--hosts]` runs it: the
digits, which take all of the machine, or the tests' probe, which sleeps through most of a step, beside the undisturbed job: replicas
(light), or fsdp (sharded), of which a dead rank takes a part with it. With --hosts the ranks are on two hosts, which are namespaces of this
machine (tests/net/cluster.py; needs root).

With --control more goes wrong beside the ranks (tests/chaos_beside.py; needs root): the coordinator dies or stands still, another process
takes its port, the disk of the run's folder is full for two seconds, which costs records of steps.
With --notices ranks leave on notice, and others come in their place (kinds leave+kill), and now and then the job parks, and goes on with
--resume auto. Other ranks cut the global batch otherwise, so that bits differ: every step is there once, and the loss of the last 100 steps
is where those of undisturbed jobs of three seeds are.

Every step of the hurt job must be in its metrics once (sharded: again where all went back to a snapshot), with the loss that an undisturbed
job prints for it, and its last checkpoint's tensors must be the undisturbed job's (a fault changes no bit); no process may be left. Prints
what the coordinator says of each of its lives, and the goodput of all: the undisturbed job's time by the hurt one's. Exit code 1 if something
is wrong.
"""
import concurrent.futures
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).with_name("net")))
from chaos_beside import PARK_AFTER_S, Beside, small_disk  # noqa: E402
from cluster import CannotRun, Cluster  # noqa: E402

TROUPE, PROGRAM, PROBE = (str(pathlib.Path("build/release", path).resolve()) for path in (
    "launch/troupe", "examples/image_classifier/image_classifier", "tests/launch/rank_probe"))
RANKS, HOSTS = 4, 2
CALIBRATION_STEPS = 400
STEPS_PER_EPOCH = {"digits": 22, "light": 10, "sharded": 10}
WORK = {"digits": [PROGRAM, "--config", "examples/image_classifier/digits.toml", "--batch_size", "16", "--schedule", "constant", "--lr", "0.01"],
        "light": [PROBE, "--probe_model", "norm", "--batch_size", "24", "--pause_ms", "100"]}
WORK["sharded"] = WORK["light"] + ["--strategy", "fsdp", "--snapshot_every", "10"]


class ThisMachine:
    """Where jobs run: four ranks here."""
    words = ["--nproc", str(RANKS)]

    @staticmethod
    def run(words, beside=None, **options):
        with subprocess.Popen(words, **options) as job:
            if beside:
                beside.begin(job.pid)
            text, _ = job.communicate()
            if beside:
                beside.end()
        return subprocess.CompletedProcess(words, job.returncode, text)


class Hosts:
    """Where jobs run: two ranks on each of two hosts, launched on the first."""

    def __init__(self, cluster):
        hosts = pathlib.Path(cluster.folder, "two-slots")
        hosts.write_text("".join(f"{host} slots={RANKS // HOSTS} address={cluster.address(host)}\n" for host in cluster.hosts))
        self.words = ["--hosts", str(hosts), "--ssh-config", cluster.ssh_config]
        self.run = lambda words, **options: cluster.run(cluster.hosts[0], words, stdin=subprocess.DEVNULL, **options)


def train(place, work, folder, steps, chaos=None, beside=None, flags=(), more=(), pause="100"):
    """The exit code, what was printed, the losses by step, and the hashes of the last checkpoint's tensors."""
    words = [TROUPE, "launch", *place.words, "--run-dir", f"{folder}/run"]
    if chaos:
        words += ["--chaos", chaos]
    words += flags
    words += [pause if word == "100" else word for word in WORK[work]]
    words += ["--log_interval", "1", "--run_dir", f"{folder}/run", "--checkpoint_dir", f"{folder}/checkpoints", "--save_every",
                           "200", "--epochs", str(steps // STEPS_PER_EPOCH[work] + 1), "--max_steps", str(steps), *more]
    options = {"beside": beside} if beside else {}
    done = place.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    losses = {}
    metrics = pathlib.Path(folder, "run/metrics.jsonl")
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        entry = json.loads(line)
        if entry["kind"] == "train":
            losses.setdefault(entry["step"], []).append(entry["loss_metrics/global_avg_loss"])
    return done.returncode, done.stdout, losses, tensors_of(f"{folder}/checkpoints")


def timed_train(*arguments):
    start = time.monotonic()
    result = train(*arguments)
    return time.monotonic() - start, result


def tensors_of(folder):
    """XXH3 of each file of tensors in the last checkpoint."""
    latest = pathlib.Path(folder, "latest")
    if not latest.exists():
        return {}
    manifest = json.loads(pathlib.Path(folder, latest.read_text().split()[0], "manifest.json").read_text())
    return {file["name"]: file["xxh3"] for file in manifest["files"] if file["name"].endswith(".safetensors")} | {"step": manifest["step"]}


def wrong(code, losses, steps, expected, may_repeat):
    """What is wrong, in a few lines."""
    found = []
    if code != 0:
        found.append(f"exit code {code}")
    missing = [step for step in range(1, steps + 1) if step not in losses]
    if missing:
        found.append(f"{len(missing)} steps are not in the metrics, the first is {missing[0]}")
    twice = [step for step, values in losses.items() if len(values) > 1]
    if twice and not may_repeat:
        found.append(f"{len(twice)} steps are in the metrics more than once, the first is {twice[0]}")
    differ = [step for step in losses if step in expected and set(losses[step]) != set(expected[step])]
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
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    words += ["2", "20", "7", "digits"][len(words):]
    if "--notices" in sys.argv:
        return leave_and_park(*(float(word) for word in words[:3]), words[3])
    with contextlib.ExitStack() as stack:
        place = Hosts(stack.enter_context(Cluster(HOSTS))) if "--hosts" in sys.argv else ThisMachine()
        soak(place, *(float(word) for word in words[:3]), words[3])


def soak(place, minutes, mtbf, seed, work):
    """The job undisturbed and hurt; ends the program where they differ."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as threads:
        start = time.monotonic()
        code, text, _, _ = train(place, work, f"{folder}/pace", CALIBRATION_STEPS)
        if code != 0:
            sys.exit(text)
        steps = max(CALIBRATION_STEPS, int(CALIBRATION_STEPS * minutes * 60 / (time.monotonic() - start)))
        print(f"{steps} steps of {work} on {RANKS} ranks, undisturbed", flush=True)
        undisturbed = threads.submit(timed_train, place, work, f"{folder}/calm", steps)
        if work == "digits":
            undisturbed.result()
        chaos = f"seed={seed:.0f},mtbf={mtbf}s,kinds=kill+stop+slow+net+disk"
        print(f"the same with --chaos {chaos}", flush=True)
        beside, disk, run = None, contextlib.nullcontext(), f"{folder}/hurt/run"
        if "--control" in sys.argv:
            beside, disk = Beside(["coordinator", "port", "disk"], mtbf, seed, run), small_disk(run, (16 << 20) + 4096 * steps)
        with disk:
            seconds, (code, text, losses, hurt_tensors) = timed_train(place, work, f"{folder}/hurt", steps, chaos, beside)
        calm_seconds, (calm_code, calm_text, expected, tensors) = undisturbed.result()
        if calm_code != 0:
            sys.exit(calm_text)
        print("\n".join(line for line in text.splitlines() if line.startswith("troupe: chaos: ")), flush=True)
        found = wrong(code, losses, steps, expected, work == "sharded")
        if beside:
            print(f"beside the ranks: {beside.counts}; the disk has cost {steps - len(losses)} records", flush=True)
            if steps - len(losses) < 0.05 * steps and beside.counts["disk"] > 0:
                found = [what for what in found if "are not in the metrics" not in what]
        if hurt_tensors != tensors:
            found.append(f"the last checkpoint differs: {hurt_tensors}, undisturbed {tensors}")
        time.sleep(1)
        if left := left_over(folder):
            found.append(f"processes are left: {', '.join(left)}")
        if found:
            print("\n".join(text.splitlines()[-40:]))
            sys.exit("; ".join(found))
        again = sum(len(values) - 1 for values in losses.values())
        print(f"goodput {100 * calm_seconds / seconds:.1f} %: {seconds:.0f} s, undisturbed {calm_seconds:.0f} s", flush=True)
        print(f"{len(losses)} steps, {again} of them more than once, with the undisturbed job's losses and last checkpoint to the last bit; no process is left")


def leave_and_park(minutes, mtbf, seed, work):
    """The job with notices and parks, and undisturbed ones of three seeds."""
    place = ThisMachine()
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        code, text, _, _ = train(place, work, f"{folder}/pace", CALIBRATION_STEPS)
        if code != 0:
            sys.exit(text)
        pace = (time.monotonic() - start) / CALIBRATION_STEPS
        steps = max(CALIBRATION_STEPS, int(minutes * 60 / pace))
        print(f"{steps} steps of {work} on {RANKS} ranks with kinds=leave+kill,mtbf={mtbf}s, and parks {8 * mtbf:.0f} s apart in the mean", flush=True)
        began, lines, lives, code = time.monotonic(), [], 0, 75
        while code == 75 and lives < 100:
            chaos = f"seed={seed + lives:.0f},mtbf={mtbf}s,kinds=leave+kill"
            code, text, losses, _ = train(place, work, f"{folder}/hurt", steps, chaos, Beside(["park"], 8 * mtbf, seed + lives, ""),
                                          flags=["--park-after", str(PARK_AFTER_S)], more=["--resume", "auto"] if lives else [])
            lines += text.splitlines()
            lives += 1
        goodput = steps * pace / (time.monotonic() - began)
        found = wrong(code, losses, steps, {}, False)
        calm = [tail(quick(place, work, f"{folder}/seed{other}", steps, other), steps) for other in (1, 2, 3)]
        mine, low, high = tail(losses, steps), min(calm), max(calm)
        print(f"{sum('is to leave (--chaos)' in line for line in lines)} notices, {sum('chaos: kill' in line for line in lines)} kills, {lives - 1} parks; "
              f"{len(losses)} of {steps} steps, each once; loss of the last 100: {mine:.5f}, of three seeds {low:.5f} to {high:.5f}; "
              f"goodput {100 * goodput:.1f} %", flush=True)
        if not 2 * low - high <= mine <= 2 * high - low:
            found.append("the loss is far from the seeds'")
        time.sleep(1)
        if left := left_over(folder):
            found.append(f"processes are left: {', '.join(left)}")
        if found:
            print("\n".join(lines[-40:]))
            sys.exit("; ".join(found))


def quick(place, work, folder, steps, seed):
    """The losses of the same job, undisturbed and without its pauses."""
    code, text, losses, _ = train(place, work, folder, steps, more=["--seed", str(seed)], pause="0")
    return losses if code == 0 else sys.exit(text)


def tail(losses, steps):
    return statistics.mean(losses[step][0] for step in range(max(1, steps - 99), steps + 1) if step in losses)


if __name__ == "__main__":
    try:
        main()
    except CannotRun as why:
        sys.exit(f"NOT RUN: {why}")
