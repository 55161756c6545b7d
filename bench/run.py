"""Ours beside PyTorch's, in turns on this machine: ./dev bench [ROW..]; the rows are listed by ./dev bench --list.

Each row keeps our program and the peer's (in each of its settings) alive side by side and lets one of them work at a time, a block
after the other, so that the machine's moods meet all of them. The peer is taken at the setting that turned out best. A line per row:

    ddp.mlp/b16 ours=31.80 peer=51.90 unit=ms ratio=0.613 spread=0.598..0.631 target=0.62 ok

ours, peer: medians over all samples; spread: 95 % bootstrap interval of the ratio of medians over blocks. `ok` if the whole interval is
within the target, `short` if not. Everything, with the samples, goes to bench/results.json, row by row. Exit code 1 if a row fell short or
final weights differ, 69 if a program is missing. bench/README.md defines what the programs compute and how they are driven.
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

import steps
from all_reduce import ALL_REDUCE_TARGETS, run_all_reduce
from compiled import COMPILED_TARGETS, TROUPE, run_compiled
from control import SIMULATE, TARGET as CONTROL_TARGET, run_control
from harness import HERE, OURS, ROOT, TORCHRUN, Program, flat, floats, in_turns, read_floats, report
from link import LINK_TARGETS, run_link
from messages import MESSAGE_TARGETS, run_messages
from scale import SCALE_TARGETS, run_overhead, run_scale
from snapshot import GPT, SNAPSHOT_TARGETS, run_snapshot
from start import run_start

CHECKPOINT_PEERS = {"thread": [], "process": ["--process"]}
CHECKPOINT_TARGETS = {"checkpoint/save": 0.1, "checkpoint/load": 0.5, "checkpoint/load/cold": 0.5, "checkpoint/writer": 150.0}  # ratio, ratio, ms of processor time per GiB
LOADER_WORKERS = (0, 1, 2)
LOADER_TARGETS = {"loader/folder": 0.7, "loader/memory": 1 / 15}
LOADER_CLOSE = {"loader/folder": 0.005, "loader/memory": 1e-6}  # mean difference of the values, where a standard deviation is about 1
START_TARGETS = {"start": 0.20}
CONTROL_TARGETS = {"control": CONTROL_TARGET}
TARGETS = {**steps.TARGETS, **SCALE_TARGETS, **START_TARGETS, **CHECKPOINT_TARGETS, **LOADER_TARGETS, **ALL_REDUCE_TARGETS,
           **LINK_TARGETS, **SNAPSHOT_TARGETS, **MESSAGE_TARGETS, **CONTROL_TARGETS, **COMPILED_TARGETS}
NEEDED = {"bench_steps": {**steps.TARGETS, **SCALE_TARGETS, **CHECKPOINT_TARGETS, **LINK_TARGETS, **COMPILED_TARGETS},
          "bench_bare_steps": {**SCALE_TARGETS, **LINK_TARGETS, **steps.DDP_TARGETS, **steps.FSDP_TARGETS},
          "bench_start": START_TARGETS, "bench_all_reduce": ALL_REDUCE_TARGETS, "bench_loader": LOADER_TARGETS, "bench_messages": MESSAGE_TARGETS,
          TROUPE: COMPILED_TARGETS, SIMULATE: CONTROL_TARGETS, GPT: SNAPSHOT_TARGETS}

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
    count = 25
    def usual(program):
        return statistics.mean(floats(program.ask(f"block {count}", "step_ms")["step_ms"]))

    def cost(program, verb):
        """Of `verb`, beside as many usual steps, and the answer."""
        before = usual(program)
        answer = program.ask(f"{verb} {count}", "step_ms")
        control = (before + usual(program)) / 2
        times, safe_after = floats(answer["step_ms"]), int(floats(answer["safe_after"])[0])
        if safe_after == 0:
            print(f"bench: {program.name} still wrote after {count} steps", file=sys.stderr)
            safe_after = count
        return sum(times[:safe_after]) - safe_after * control, answer

    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:  # a disk, not a tmpfs
        folders = {name: f"{scratch}/{name}" for name in ("ours", *CHECKPOINT_PEERS)}
        everyone = {"ours": Program([str(OURS / "bench_steps"), "--batch", "16", "--layers", "32", "--checkpoints", folders["ours"]], "bench_steps")}
        for setting, flags in CHECKPOINT_PEERS.items():
            everyone[setting] = Program(TORCHRUN + ["bench/peer/checkpoint.py", "--directory", folders[setting]] + flags, setting)
        costs, loads, cold_loads = ({name: [] for name in everyone} for _ in range(3))
        blocking, plain_writes, writer, cold_plain, warm_plain = [], [], [], [], []
        order = random.Random(1)
        for number in range(-1, rounds):  # the first warms up
            for name in order.sample(list(everyone), len(everyone)):
                steps_cost, answer = cost(everyone[name], "save")
                forget(folders[name])
                everyone[name].ask("load", "load_ms")  # a disk of a virtual machine may be slow at new blocks' first read, whoever reads
                forget(folders[name])
                cold, warm = (floats(everyone[name].ask("load", "load_ms")["load_ms"])[0] for _ in range(2))
                plain_write = cost(everyone[name], "write")[0] if name == "ours" else None
                if number >= 0:
                    call = floats(answer["blocking_ms"])[0]
                    if name == "ours":
                        blocking.append(call)
                        warm_plain += floats(everyone[name].ask(f"read {folders[name]}", "read_ms")["read_ms"])
                        cold_plain.append(plain_read_ms(folders[name]))
                        plain_writes.append(plain_write)
                    costs[name].append([call + steps_cost])
                    loads[name].append([warm])
                    cold_loads[name].append([cold])
        for _ in range(rounds):
            writer += floats(everyone["ours"].ask(f"writer {scratch}/writer", "cpu_ms_per_gib")["cpu_ms_per_gib"])
        for program in everyone.values():
            program.quit()
    results = []
    extra = {"blocking_ms": round(statistics.median(blocking), 1), "plain_write_ms": round(statistics.median(plain_writes), 1)}
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


def machine():
    models = [line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()}


def versions():
    """Of the peers."""
    folders = pathlib.Path(TORCHRUN[0]).parents[1].glob("lib/python*/site-packages/torch*.dist-info")
    return dict(sorted(folder.name.removesuffix(".dist-info").split("-")[:2] for folder in folders))


def keep(path, results):
    """Puts the rows into the file, in the place of what it had of them."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    file = pathlib.Path(path)
    rows = json.loads(file.read_text())["rows"] if file.exists() else {}
    for result in results:
        measured = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit, "machine": machine(), "versions": versions()}
        rows[result["row"]] = {**measured, **{name: value for name, value in result.items() if name != "row"}}
    lines = ",\n".join(f" {json.dumps(row)}: {json.dumps(rows[row])}" for row in TARGETS if row in rows)  # a line for each
    file.write_text(f'{{"rows": {{\n{lines}\n}}}}\n')


def measure(rows, blocks, count):
    """The results, a list for each part of the work."""
    yield from steps.run_steps(rows, blocks, count)
    if any(row in CHECKPOINT_TARGETS for row in rows):
        yield run_checkpoint(rows, blocks)
    for row in rows:
        if row in SCALE_TARGETS:
            yield [(run_overhead if row == "local.overhead" else run_scale)(row, blocks, count)]
    if "start" in rows:
        yield [run_start(TARGETS["start"], max(10, blocks))]
    for row in rows:
        if row in LOADER_TARGETS:
            yield run_loader(row, blocks)
    reduce_rows = [row for row in rows if row in ALL_REDUCE_TARGETS]
    if reduce_rows:
        yield run_all_reduce(reduce_rows, max(3, blocks // 2))
    if any(row in LINK_TARGETS for row in rows):
        yield run_link(rows, blocks, count)
    if "snapshot" in rows:
        yield [run_snapshot("snapshot", blocks)]
    if any(row in MESSAGE_TARGETS for row in rows):
        yield run_messages(rows, max(10, blocks))
    if "control" in rows:
        yield [run_control("control")]
    for row in rows:
        if row in COMPILED_TARGETS:
            yield run_compiled(row, blocks, count)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--list", action="store_true", help="the rows and their targets")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, help="steps in a block; default 15, of gpt and resnet 5")
    parser.add_argument("--output", default=str(HERE / "results.json"))
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{row} target={target:.4g}" for row, target in TARGETS.items()))
        return 0
    # A row, or a group of them: `loader` is loader/folder and loader/memory.
    wanted = {row: [row] if row in TARGETS else [name for name in TARGETS if name.startswith((row + "/", row + "."))] for row in options.rows}
    unknown = [row for row, found in wanted.items() if not found]
    if unknown:
        print(f"bench: no such row: {', '.join(unknown)}; the rows are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    rows = list(dict.fromkeys(name for found in wanted.values() for name in found)) or list(TARGETS)
    missing = [str(name) for name, targets in NEEDED.items() if not targets.keys().isdisjoint(rows) and not (OURS / name).exists()]
    if missing:
        print(f"bench: not built: {', '.join(missing)}; ./dev build", file=sys.stderr)
        return 69

    results = []
    for found in measure(rows, options.blocks, options.steps):
        keep(options.output, found)
        results += found
    return 0 if all(result["ok"] for result in results) and len(results) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
