#!/usr/bin/env python3
"""bench/results.json as the table of docs/benchmarks.md: bench/table.py"""
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent

EXTRA = ("alone_ms", "blocking_ms", "plain_write_ms", "plain_read_ms", "line_us", "alone_p99/p50", "compile_s", "model_load_ms", "file_MB", "torch_compile_s")


def number(value):
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def share(value, like=None):
    """A small one as a fraction; `like`: in the form in which that is written."""
    return f"1/{number(1 / value)}" if (like or value) < 0.1 else f"{value:.3f}"


def line(row, found):
    peer = "" if found.get("peer") is None else f"{number(found['peer'])} {found['unit']} ({found.get('peer_setting', 'the peer')})"
    ratio = "" if found.get("ratio") is None else share(found["ratio"])
    if found.get("spread"):
        ratio += " ({}–{})".format(*(share(end, found["ratio"]) for end in found["spread"]))
    extra = "".join("; {} {} {}".format(name.rpartition("_")[0].replace("_", " "), found[name], name.rpartition("_")[2]) for name in EXTRA if name in found)
    target = "" if found.get("target") is None else share(found["target"], found.get("ratio"))
    setting = f" ({found['our_setting'].replace('_', ' ')})" if row.startswith("compiled/") else ""
    return f"| {row} | {number(found['ours'])} {found['unit']}{setting}{extra} | {peer} | {ratio} | {target} | {'ok' if found['ok'] else 'short'} | {found['time'][:10]} |"


def main():
    rows = json.loads((HERE / "results.json").read_text())["rows"]
    print("| row | ours | other side, best setting | ratio (95 %) | target | | measured |\n|---|---|---|---|---|---|---|")
    for row, found in rows.items():
        print(line(row, found))


if __name__ == "__main__":
    main()
