"""The row control: messages of a job's beginning and of its changes of membership in the simulator, from 100 ranks to 10,000."""
import math
import re
import subprocess

from harness import ROOT

SIMULATE = ROOT / "build/release/tests/simulator/simulate"
RANKS = (100, 1000, 10000)
TARGET = 1.0  # of N log N
LINE = re.compile(r"^ *(\d+)  (.{28})  +(\d+)  +[\d.]+  +[\d.]+  +[\d.]+$")


def run_control(row):
    run = subprocess.run([str(SIMULATE), "--ranks", ",".join(map(str, RANKS))], stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    messages = {}
    for found in filter(None, map(LINE.match, run.stdout.splitlines())):
        messages.setdefault(found[2].strip(), {})[int(found[1])] = int(found[3])
    if not messages or any(set(counts) != set(RANKS) for counts in messages.values()):
        raise SystemExit("bench: simulate --ranks printed something else than this row reads")
    growth = {}
    for change, counts in messages.items():
        growth[change] = max(counts[many] / counts[few] / (many * math.log(many) / (few * math.log(few))) for few, many in zip(RANKS, RANKS[1:]))
    worst = max(growth, key=growth.get)
    ok = growth[worst] <= TARGET
    per_rank = max(counts[RANKS[-1]] / RANKS[-1] for counts in messages.values())
    print(f"{row} ours={per_rank:.2f} unit=messages_per_rank ratio={growth[worst]:.3f} of='N log N' worst='{worst}' target={TARGET:.2f} "
          f"{'ok' if ok else 'short'}", flush=True)
    return {"row": row, "unit": "messages per rank", "ours": per_rank, "ratio": growth[worst], "target": TARGET, "ok": ok, "messages": messages}
