"""The rows all_reduce/*: ours in shared memory beside Gloo's of torch, OpenMPI's, and the same loop on memory that no other rank has."""
import os
import statistics
import subprocess

from harness import DEADLINE_S, HERE, OURS, ROOT, TORCHRUN, Program, flat, floats, in_turns, report

SIZES = {"4B": 4, "4KiB": 4 << 10, "64KiB": 64 << 10, "25MiB": 25 << 20, "400MiB": 400 << 20}
ROUNDS = {"4B": 200, "4KiB": 200, "64KiB": 200, "25MiB": 20, "400MiB": 3}
RANKS = {"": 2, "/4ranks": 4}
GLOO = {"4B": 1 / 40, "4KiB": 1 / 40, "64KiB": 1 / 40, "25MiB": 1 / 15, "400MiB": 1 / 15}
OPENMPI, ALONE = 0.7, 1.25


def targets():
    found = {}
    for suffix in RANKS:
        for size in SIZES:
            row = f"all_reduce/{size}{suffix}"
            found[row], found[row + "/openmpi"] = GLOO[size], OPENMPI
            if SIZES[size] >= 1 << 20 and not suffix:  # where memory bounds it, and each rank has a core
                found[row + "/alone"] = ALONE
    return found


ALL_REDUCE_TARGETS = targets()


def compile_openmpi():
    program = ROOT / "build/bench-mpi/all_reduce_mpi"
    source = HERE / "peer/all_reduce_mpi.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mpicc", "-O3", "-march=native", "-o", str(program), str(source)], check=True)
    return program


def openmpi(program, ranks, size, rounds):
    """Starts and ends each time: a rank that waits in OpenMPI keeps its core."""
    words = ["mpirun", "--allow-run-as-root", "-np", str(ranks)]
    words += ["--bind-to", "core"] if ranks <= (os.cpu_count() or 1) else ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    run = subprocess.run([*words, str(program), str(size), str(rounds)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                         check=True, timeout=DEADLINE_S)
    return floats(run.stdout.split()[1:])


def beside(row, rows):
    """Of the rows of one size those that are in `rows`, and what each stands beside."""
    sides = {row: "Gloo of torch 2.11", row + "/openmpi": "OpenMPI", row + "/alone": "alone"}
    return {name: side for name, side in sides.items() if name in rows}


def run_all_reduce(rows, turns):
    results = []
    for suffix, ranks in RANKS.items():
        others = {size: beside(f"all_reduce/{size}{suffix}", rows) for size in SIZES}
        if not any(others.values()):
            continue
        ours = Program([str(OURS / "bench_all_reduce"), "--ranks", str(ranks)], "bench_all_reduce")
        gloo = Program([*TORCHRUN[:-1], str(ranks), "bench/peer/all_reduce.py"], "all_reduce.py")
        mpi = compile_openmpi()
        for size, wanted in others.items():
            if not wanted:
                continue
            count, rounds = SIZES[size], ROUNDS[size]
            sides = {"ours": lambda: floats(ours.ask(f"bytes {count} {rounds} shm", "write_and_reduce_us")["reduce_us"]),
                     "Gloo of torch 2.11": lambda: floats(gloo.ask(f"bytes {count} {rounds}", "write_and_reduce_us")["reduce_us"]),
                     "OpenMPI": lambda: openmpi(mpi, ranks, count, rounds),
                     "alone": lambda: floats(ours.ask(f"bytes {count} {rounds} alone", "write_and_reduce_us")["reduce_us"])}
            if size == "4B":  # what no all-reduce between these cores can be below
                sides["line"] = lambda: floats(ours.ask(f"bytes {count} {rounds} line", "write_and_reduce_us")["reduce_us"])
            times = in_turns(["ours", *wanted.values(), *(["line"] if "line" in sides else [])], turns, lambda name: sides[name]())
            extra = {"line_us": round(statistics.median(flat(times["line"])), 2)} if "line" in sides else {}
            results += [report(name, ALL_REDUCE_TARGETS[name], times["ours"], {other: times[other]}, "us", extra) for name, other in wanted.items()]
        ours.quit()
        gloo.quit()
    return results
