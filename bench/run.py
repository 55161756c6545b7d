"""Ours beside PyTorch's, in turns on this machine: ./dev bench [ROW..]; the rows are listed by ./dev bench --list.

Each row keeps our program and the peer's (in each of its settings) alive side by side and lets one of them work at a time, a block
after the other, so that the machine's moods meet all of them. The peer is taken at the setting that turned out best. A line per row:

    ddp.mlp/b16 ours=31.80 peer=51.90 unit=ms ratio=0.613 spread=0.598..0.631 target=0.75 ok

ours, peer: medians over all samples; spread: 95 % bootstrap interval of the ratio of medians over blocks. `ok` if the whole interval is
within the target, `short` if not. Everything, with the samples, goes to bench/results.json. Exit code 1 if a row fell short or final
weights differ, 69 if a program is missing. bench/README.md defines what the programs compute and how they are driven.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

from harness import (DEADLINE_S, HERE, OURS, ROOT, TORCHRUN, Program, flat, floats, in_turns, read_floats, report, step_answers,
                     step_times, weights_difference)
from scale import SCALE_TARGETS, run_overhead, run_scale
from start import run_start

MLP_PEERS = {f"bucket {mb} MB{', static graph' if static else ''}": ["--bucket-mb", str(mb)] + (["--static-graph"] if static else [])
             for mb in (5, 25, 100) for static in (False, True)}
FSDP_PEERS = {"reshard": [], "keep": ["--keep"]}
TARGETS = {"fsdp.mlp/b16": 0.30, "fsdp.mlp/b128": 0.42, "fsdp.mlp/b16/ddp": 1.15, "fsdp.mlp/b128/ddp": 1.15,
           "ddp.mlp/b16": 0.75, "ddp.mlp/b64": 0.85, "actors/b16": 50.0, "actors/b64": 50.0,
           "all_reduce/4B": 1 / 40, "all_reduce/4KiB": 1 / 40, "all_reduce/64KiB": 1 / 40, "all_reduce/25MiB": 1 / 15}
CHECKPOINT_PEERS = {"thread": [], "process": ["--process"]}
CHECKPOINT_TARGETS = {"checkpoint/save": 0.1, "checkpoint/load": 0.5, "checkpoint/load/cold": 0.5, "checkpoint/writer": 150.0}  # ratio, ratio, ms of processor time per GiB
LOADER_WORKERS = (0, 1, 2)
LOADER_TARGETS = {"loader/folder": 0.7, "loader/memory": 1 / 15}
LOADER_CLOSE = {"loader/folder": 0.005, "loader/memory": 1e-6}  # mean difference of the values, where a standard deviation is about 1
TARGETS.update(CHECKPOINT_TARGETS)
TARGETS.update(LOADER_TARGETS)
TARGETS.update(SCALE_TARGETS)
TARGETS.update({"jitter/b16": 1.08, "start": 0.20})
SIZES = {"all_reduce/4B": 4, "all_reduce/4KiB": 4096, "all_reduce/64KiB": 65536, "all_reduce/25MiB": 25 << 20}


def run_mlp(batch, rows, blocks, steps):
    """The rows ddp.mlp/bN and actors/bN."""
    ours = Program([str(OURS / "bench_ddp_mlp"), "--batch", str(batch)], "bench_ddp_mlp")
    peers = {setting: Program(TORCHRUN + ["bench/peer/ddp_mlp.py", "--batch", str(batch)] + flags, setting)
             for setting, flags in MLP_PEERS.items()}
    everyone = {"ours": ours, **peers}
    answers = step_answers(everyone, blocks, steps)  # DDP rebuilds its buckets in the block that warms up, we too
    times = step_times(answers)
    actors_us = [floats(answer["actors_us"]) for answer in answers["ours"] if "actors_us" in answer]
    difference = weights_difference(everyone, "ours")
    results = []
    row = f"ddp.mlp/b{batch}"
    if row in rows:
        results.append(report(row, TARGETS[row], times["ours"], {s: times[s] for s in peers}, "ms", {"max_weight_difference": difference}))
    row = f"jitter/b{batch}"
    if row in rows:
        results.append(jitter(row, times["ours"], {s: times[s] for s in peers}))
    row = f"actors/b{batch}"
    if row in rows and actors_us:
        spent, step = statistics.median(flat(actors_us)), statistics.median(flat(times["ours"]))
        share = spent / (step * 1e3)
        ok = spent <= TARGETS[row] and share <= 0.01
        print(f"{row} ours={spent:.1f} unit=us share_of_step={share:.4%} target={TARGETS[row]:.0f}us,1% {'ok' if ok else 'short'}", flush=True)
        results.append({"row": row, "unit": "us", "ours": spent, "share_of_step": share, "ok": ok, "samples": actors_us})
    return results


def jitter(row, ours, peers):
    """p99 / p50 of the step, ours and that of the peer's fastest setting; a row of blocks of more steps says more."""
    best = min(peers, key=lambda setting: statistics.median(flat(peers[setting])))
    a, b = ([statistics.quantiles(flat(blocks), n=100)[98] / statistics.median(flat(blocks)) for blocks in (ours, peers[best])])
    ok = a <= TARGETS[row] and a <= b
    print(f"{row} ours={a:.4f} peer={b:.4f} unit=p99/p50 steps={len(flat(ours))} target={TARGETS[row]:.2f},peer "
          f"peer_setting='{best}' {'ok' if ok else 'short'}", flush=True)
    return {"row": row, "unit": "p99/p50", "ours": a, "peer": b, "ok": ok, "peer_setting": best}


def run_fsdp(batch, rows, blocks, steps):
    """The rows fsdp.mlp/bN (peer: FSDP2) and fsdp.mlp/bN/ddp (peer: our own ddp)."""
    ours = {name: Program([str(OURS / "bench_ddp_mlp"), "--batch", str(batch), name], name) for name in ("fsdp", "ddp")}
    peers = {setting: Program(TORCHRUN + ["bench/peer/fsdp_mlp.py", "--batch", str(batch)] + flags, setting)
             for setting, flags in FSDP_PEERS.items()}
    everyone = {**ours, **peers}
    times = step_times(step_answers(everyone, blocks, steps))
    difference = weights_difference(everyone, "fsdp")
    results = []
    row = f"fsdp.mlp/b{batch}"
    if row in rows:
        results.append(report(row, TARGETS[row], times["fsdp"], {s: times[s] for s in peers}, "ms", {"max_weight_difference": difference}))
    if row + "/ddp" in rows:
        results.append(report(row + "/ddp", TARGETS[row + "/ddp"], times["fsdp"], {"our ddp": times["ddp"]}, "ms", {"max_weight_difference": difference}))
    return results


def run_all_reduce(rows, turns):
    """Our benchmark prints JSON lines and ends; the peer's stays. They alternate, whole runs of ours with blocks of the peer's."""
    peer = Program(TORCHRUN + ["bench/peer/all_reduce.py"], "all_reduce.py")
    ours, peers = {row: [] for row in rows}, {row: [] for row in rows}
    for _ in range(turns):
        for row in rows:
            rounds = 200 if SIZES[row] <= 65536 else 20
            peers[row].append(floats(peer.ask(f"bytes {SIZES[row]} {rounds}", "write_and_reduce_us")["reduce_us"]))
        run = subprocess.run([str(OURS / "bench_all_reduce")], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S)
        for line in filter(lambda line: line.startswith("{"), run.stdout.splitlines()):
            entry = json.loads(line)
            for row in rows:
                if entry["backend"] == "shm" and entry["bytes"] == SIZES[row]:
                    ours[row].append([entry["reduce_us"]["p50"]])
    peer.quit()
    return [report(row, TARGETS[row], ours[row], {"Gloo of torch 2.11": peers[row]}, "us", {}) for row in rows if ours[row]]


def files_in(folder):
    return filter(pathlib.Path.is_file, pathlib.Path(folder).rglob("*"))


def forget(folder):
    """Lets what was written go from the page cache, so that a load reads the disk."""
    os.sync()
    for path in files_in(folder):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read_ms(folder):
    """What the disk takes for the same bytes, if nothing is done with them."""
    forget(folder)
    buffer, begin = bytearray(4 << 20), time.perf_counter()
    for path in files_in(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return (time.perf_counter() - begin) * 1e3


def run_checkpoint(rows, rounds):
    """The rows checkpoint/*: 384 MiB of parameters and moments, saved while training goes on, and loaded."""
    steps = 25
    def usual(program):
        return statistics.mean(floats(program.ask(f"block {steps}", "step_ms")["step_ms"]))

    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:  # a disk, not a tmpfs
        folders = {name: f"{scratch}/{name}" for name in ("ours", *CHECKPOINT_PEERS)}
        everyone = {"ours": Program([str(OURS / "bench_ddp_mlp"), "--batch", "16", "ddp", "2", "32", folders["ours"]], "bench_ddp_mlp")}
        for setting, flags in CHECKPOINT_PEERS.items():
            everyone[setting] = Program(TORCHRUN + ["bench/peer/checkpoint.py", "--directory", folders[setting]] + flags, setting)
        costs, loads, cold_loads = ({name: [] for name in everyone} for _ in range(3))
        blocking, writer, cold_plain, warm_plain = [], [], [], []
        order = random.Random(1)
        for number in range(-1, rounds):  # the first warms up
            for name in order.sample(list(everyone), len(everyone)):
                before = usual(everyone[name])
                answer = everyone[name].ask(f"save {steps}", "step_ms")
                control = (before + usual(everyone[name])) / 2
                times, safe_after = floats(answer["step_ms"]), int(floats(answer["safe_after"])[0])
                if safe_after == 0:
                    print(f"bench: {name} still wrote after {steps} steps", file=sys.stderr)
                    safe_after = steps
                forget(folders[name])
                cold, warm = (floats(everyone[name].ask("load", "load_ms")["load_ms"])[0] for _ in range(2))
                if number >= 0:
                    call = floats(answer["blocking_ms"])[0]
                    if name == "ours":
                        blocking.append(call)
                        warm_plain += floats(everyone[name].ask(f"read {folders[name]}", "read_ms")["read_ms"])
                        cold_plain.append(plain_read_ms(folders[name]))
                    costs[name].append([call + sum(times[:safe_after]) - safe_after * control])
                    loads[name].append([warm])
                    cold_loads[name].append([cold])
        for _ in range(rounds):
            writer += floats(everyone["ours"].ask(f"writer {scratch}/writer", "cpu_ms_per_gib")["cpu_ms_per_gib"])
        for program in everyone.values():
            program.quit()
    results = []
    extra = {"blocking_ms": round(statistics.median(blocking), 1)}
    if "checkpoint/save" in rows:
        results.append(report("checkpoint/save", TARGETS["checkpoint/save"], costs["ours"], {s: costs[s] for s in CHECKPOINT_PEERS}, "ms", extra))
    if "checkpoint/load" in rows:
        results.append(report("checkpoint/load", TARGETS["checkpoint/load"], loads["ours"], {s: loads[s] for s in CHECKPOINT_PEERS}, "ms",
                              {"plain_read_ms": round(statistics.median(warm_plain), 1)}))
    if "checkpoint/load/cold" in rows:
        extra = {"plain_read_ms": round(statistics.median(cold_plain), 1)}
        results.append(report("checkpoint/load/cold", TARGETS["checkpoint/load/cold"], cold_loads["ours"], {s: cold_loads[s] for s in CHECKPOINT_PEERS}, "ms", extra))
    if "checkpoint/writer" in rows:
        median, ok = statistics.median(writer), statistics.median(writer) <= TARGETS["checkpoint/writer"]
        print(f"checkpoint/writer ours={median:.1f} unit=ms/GiB target={TARGETS['checkpoint/writer']:.0f} {'ok' if ok else 'short'}", flush=True)
        results.append({"row": "checkpoint/writer", "unit": "ms/GiB", "ours": median, "ok": ok, "samples": writer})
    return results


def mean_difference(path_a, path_b):
    a, b = read_floats(path_a), read_floats(path_b)
    return sum(abs(x - y) for x, y in zip(a, b)) / len(a) if len(a) == len(b) else float("inf")


def run_loader(row, blocks):
    """The rows loader/*: each side at its best number of workers."""
    folder = ROOT / "build/bench-pictures"
    if not (folder / "images.u8").exists():
        print("bench: writing 2,000 JPEG files (150 MB) into build/bench-pictures", file=sys.stderr)
        subprocess.run([TORCHRUN[0], str(HERE / "peer/write_pictures.py"), str(folder), "2000"], check=True)
    kind, path, batches = ("folder", folder, 40) if row == "loader/folder" else ("memory", folder / "images.u8", 1000)
    ours = {f"{n} workers": Program([str(OURS / "bench_loader"), kind, str(path), str(n)], f"bench_loader with {n} workers") for n in LOADER_WORKERS}
    peers = {f"{n} workers": Program([TORCHRUN[0], "bench/peer/loader.py", kind, str(path), str(n)], f"DataLoader with {n} workers")
             for n in LOADER_WORKERS}
    everyone = {**{("ours", name): program for name, program in ours.items()}, **{("peer", name): program for name, program in peers.items()}}
    times = in_turns(everyone, blocks, lambda name: floats(everyone[name].ask(f"block {batches}", "batch_ms")["batch_ms"]))
    with tempfile.TemporaryDirectory() as scratch:
        files = [f"{scratch}/ours", f"{scratch}/peer"]
        ours["0 workers"].ask(f"values {files[0]}", "values")
        peers["0 workers"].ask(f"values {files[1]}", "values")
        difference = mean_difference(*files)
    for program in everyone.values():
        program.quit()
    best = min(ours, key=lambda name: statistics.median(flat(times["ours", name])))
    extra = {"our_setting": best.replace(" ", "_"), "mean_difference": f"{difference:.2g}"}
    result = report(row, TARGETS[row], times["ours", best], {name: times["peer", name] for name in peers}, "ms", extra)
    result["ours_all"] = {name: times["ours", name] for name in ours}
    result["ok"] = result["ok"] and difference <= LOADER_CLOSE[row]
    if difference > LOADER_CLOSE[row]:
        print(f"{row}: the values differ by {difference:.3g} on average, {LOADER_CLOSE[row]:.3g} are allowed")
    return [result]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--list", action="store_true", help="the rows and their targets")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=15, help="steps in a block")
    parser.add_argument("--output", default=str(HERE / "results.json"))
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{row} target={target:.4g}" for row, target in TARGETS.items()))
        return 0
    options.rows = [each for row in options.rows for each in (LOADER_TARGETS if row == "loader" else [row])]
    unknown = [row for row in options.rows if row not in TARGETS]
    if unknown:
        print(f"bench: no such row: {', '.join(unknown)}; the rows are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    rows = options.rows or list(TARGETS)
    needed = {"bench_ddp_mlp": any("all_reduce" not in row and row not in LOADER_TARGETS and row != "start" for row in rows),
              "bench_bare_mlp": any(row in SCALE_TARGETS for row in rows), "bench_start": "start" in rows,
              "bench_all_reduce": any("all_reduce" in row for row in rows), "bench_loader": any(row in LOADER_TARGETS for row in rows)}
    missing = [name for name, wanted in needed.items() if wanted and not (OURS / name).exists()]
    if missing:
        print(f"bench: not built: {', '.join(missing)}; ./dev build", file=sys.stderr)
        return 69

    results = []
    for batch in (16, 128):
        if any(row.startswith(f"fsdp.mlp/b{batch}") and row.split("/")[1] == f"b{batch}" for row in rows):
            results += run_fsdp(batch, rows, options.blocks, options.steps)
    for batch in (16, 64):
        if any(row in rows for row in (f"ddp.mlp/b{batch}", f"actors/b{batch}", f"jitter/b{batch}")):
            results += run_mlp(batch, rows, options.blocks, options.steps)
    if any(row in CHECKPOINT_TARGETS for row in rows):
        results += run_checkpoint(rows, options.blocks)
    for row in rows:
        if row in SCALE_TARGETS:
            results.append((run_overhead if row == "local.overhead" else run_scale)(row, options.blocks, options.steps))
    if "start" in rows:
        results.append(run_start(TARGETS["start"], max(10, options.blocks)))
    for row in rows:
        if row in LOADER_TARGETS:
            results += run_loader(row, options.blocks)
    reduce_rows = [row for row in rows if row in SIZES]
    if reduce_rows:
        results += run_all_reduce(reduce_rows, max(3, options.blocks // 2))

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()}
    document = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "machine": machine, "results": results}
    pathlib.Path(options.output).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(result["ok"] for result in results) and len(results) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
