"""Memory of a rank under full_shard, beside the formula: python3 bench/memory.py [LAYERS]

A model of LAYERS x Linear(1024) (default 24) as units, AdamW, fp32, 4 samples a rank, on 1, 2, 4 and 8 processes of this machine. Measured: the
largest Pss (pages that processes share count in parts) of any rank during 6 steps, less that of the same program with next to no model.
Formula: 16 bytes x P / N, two units and two units of gradient, and 4 bytes x P / N for the mapped gather; the limit is 1.10 times that.
Exit code 1 if a row is over it.
"""
import pathlib
import subprocess
import sys

OURS = pathlib.Path(__file__).resolve().parent.parent / "build/release/bench/bench_steps"
UNIT = 1024 * 1024 + 1024  # parameters


def peak(ranks, layers):
    run = subprocess.run([str(OURS), "--batch", "4", "--strategy", "fsdp", "--ranks", str(ranks), "--layers", str(layers)], input="block 2\nmemory 6\nquit\n", text=True,
                         stdout=subprocess.PIPE, check=True, timeout=600, env={"OMP_NUM_THREADS": "1"})
    for line in run.stdout.splitlines():
        if line.startswith("peak_pss_mib"):
            return max(float(word) for word in line.split()[1:])
    raise SystemExit("memory: the program did not answer")


def main():
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    ok = True
    print(f"| ranks | measured, MiB | formula, MiB | ratio | limit 1.10 |\n|---|---|---|---|---|")
    for ranks in (1, 2, 4, 8):
        measured = peak(ranks, layers) - peak(ranks, 0)
        formula = (20 * layers * UNIT / ranks + 4 * 4 * UNIT) / 2**20
        fits = measured <= 1.10 * formula
        ok = ok and fits
        print(f"| {ranks} | {measured:.1f} | {formula:.1f} | {measured / formula:.3f} | {'ok' if fits else 'over'} |", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
