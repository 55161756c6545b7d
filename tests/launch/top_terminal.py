"""`troupe top` on a terminal follows a run until its end: top_terminal.py TROUPE"""
import json
import os
import pathlib
import pty
import select
import sys
import tempfile
import time

deadline = time.monotonic() + 60


def record(kind, step, **more):
    return json.dumps({"schema": 1, "kind": kind, "step": step, "epoch": 0, "wall_time": 1.0, **more}) + "\n"


def read_until(text):
    global seen
    while text not in seen:
        if time.monotonic() > deadline:
            sys.exit(f"never shown: {text}\n{seen}")
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 65536).decode()
            except OSError:  # the program has ended
                break
    return text in seen


with tempfile.TemporaryDirectory() as folder:
    metrics = pathlib.Path(folder, "metrics.jsonl")
    metrics.write_text(record("start", 0) + record("train", 7))
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.argv[1], [sys.argv[1], "top", folder])
    seen = ""
    assert read_until("step 7 "), seen
    assert "\x1b[H" in seen, "the screen is drawn anew from its first line"
    line = record("train", 8)
    with metrics.open("a") as file:  # half a line is not shown, and not lost
        file.write(line[:20])
        file.flush()
        time.sleep(1.5)
        file.write(line[20:])
    assert read_until("step 8 "), seen
    with metrics.open("a") as file:
        file.write(record("end", 8, error="rank 1: it broke"))
    assert read_until("failed: rank 1: it broke"), seen
    while True:
        try:
            if not os.read(terminal, 65536):
                break
        except OSError:
            break
    assert os.waitpid(child, 0)[1] == 0
