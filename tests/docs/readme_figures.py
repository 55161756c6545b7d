"""README's table beside PyTorch is the one that bench/results.json and bench/recover.json give. readme_figures.py --write puts it there."""
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin, written by docs/site/figures.py -->", "<!-- figures: end -->"
PLACE = re.compile(re.escape(BEGIN) + "\n(.*?)" + re.escape(END), re.DOTALL)
STEP = "a step of `{}`, {}"
# A row's name, what is measured, the other side ({} is its version), more and less of it, and the conditions.
ROWS = [
    ("ddp.mlp/b16", STEP.format("ddp", "8 × Linear(1024), 16 samples a rank"), "DDP, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("ddp.mlp/b64", STEP.format("ddp", "8 × Linear(1024), 64 samples a rank"), "DDP, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("ddp.gpt", STEP.format("ddp", "GPT of 6 layers, width 512"), "DDP, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("ddp.resnet", STEP.format("ddp", "small ResNet, 32 samples a rank"), "DDP, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("fsdp.mlp/b16", STEP.format("fsdp", "8 × Linear(1024), 16 samples a rank"), "FSDP2, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("fsdp.gpt", STEP.format("fsdp", "GPT of 6 layers, width 512"), "FSDP2, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("compiled/fsdp.gpt", "a step of `fsdp`, that GPT in Python, by `troupe compile`", "FSDP2, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("checkpoint/save", "what a save of 384 MiB costs training", "`async_save`, PyTorch {torch}", "less", "CPU, 2 ranks"),
    ("start", "from the command to the end of step 1", "torchrun, PyTorch {torch}, Gloo", "faster", "CPU, 2 ranks"),
    ("memory/fsdp.gpt", "memory of a rank, that GPT with `fsdp`", "FSDP2, PyTorch {torch}, Gloo", "less", "CPU, 2 ranks"),
    ("messages/round_trip", "a message to an actor of another process and back", "Monarch {torchmonarch}", "faster", "CPU, 1 host"),
]
KILLS = [("replaced", "a rank is killed, a new process takes its place"), ("shrink", "a rank is killed, the job shrinks")]


def number(value):
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1 else f"{value:.3g}"


def amount(value, unit):
    """With a space that no line ends at."""
    if unit == "ms" and value >= 1000:
        value, unit = value / 1e3, "s"
    return f"{number(value)}\u00a0{'µs' if unit == 'us' else unit}"


def result(ratio, ends, word):
    """ratio: ours / peer, with its interval, or None for a single measurement."""
    if ends and ends[0] <= 1 <= ends[1]:
        return f"no clear difference ({1 / ends[1]:.2f}–{1 / ends[0]:.2f} times {word})"
    if ends and ends[1] > 1:
        raise ValueError(f"a row in which the other side is ahead has no wording here: {ratio}, {ends}")
    interval = f" ({number(1 / ends[1])}–{number(1 / ends[0])})" if ends and ends[0] < ends[1] else ""
    return f"**{number(1 / ratio)} times {word}**{interval}"


def table(rows, recover):
    versions = rows["ddp.mlp/b16"]["versions"]
    out = ["| measured | Troupe | beside | result (95 % interval) | conditions |", "|---|---|---|---|---|"]
    for name, what, peer, word, where in ROWS:
        row = rows[name]
        if row.get("versions", versions) != versions:
            raise ValueError(f"{name} was measured beside other versions than ddp.mlp/b16: {row['versions']}")
        if row.get("our_setting", "compiled") != "compiled":
            raise ValueError(f"{name}: our best is {row['our_setting']}, and the table says that it is a compiled model")
        out.append(f"| {what} | {amount(row['ours'], row['unit'])} | {peer.format(**versions)}: {amount(row['peer'], row['unit'])} | "
                   f"{result(row['ratio'], row['spread'], word)} | {where}, {row['time'][:10]} |")
    peer = statistics.median(recover["kills"]["torchft"])
    for name, what in KILLS:
        ours = statistics.median(recover["kills"][name])
        out.append(f"| {what}: to a survivor's next step | {amount(ours, 'ms')} | TorchFT {versions['torchft']} at its defaults, Gloo: {amount(peer, 'ms')} | "
                   f"{result(ours / peer, None, 'faster')} | CPU, 4 ranks, {recover['time'][:10]} |")
    trained = [name for name, *_ in ROWS if name.startswith(("ddp.", "fsdp."))]
    if any(rows[name].get("max_weight_difference", 1) != 0 for name in trained):
        raise ValueError("the sides of a row end with different weights, and README says that they don't")
    return "\n".join(out) + "\n"


def with_table(page, text):
    if not PLACE.search(page):
        raise ValueError(f"README.md has no place for its table: {BEGIN}, {END}")
    return PLACE.sub(lambda _: f"{BEGIN}\n{text}{END}", page)


def check_itself():
    assert (amount(25, "ms"), amount(2658.9, "ms"), amount(89.4, "us"), amount(1043.3, "MiB")) == ("25.0\u00a0ms", "2.66\u00a0s", "89.4\u00a0µs", "1,043\u00a0MiB")
    assert result(0.5, [0.4, 0.625], "faster") == "**2.00 times faster** (1.60–2.50)" and "no clear" in result(0.97, [0.95, 1.002], "faster")
    page = f"a\n{BEGIN}\nold\n{END}\nb\n"
    assert with_table(page, "new\n") == page.replace("old", "new") != page
    for wrong in (lambda: with_table("a", "b"), lambda: result(1.2, [1.1, 1.3], "faster")):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("no fault found")


def main():
    check_itself()
    read = lambda name: json.loads((ROOT / "bench" / name).read_text())
    page = PAGE.read_text()
    try:
        wanted = with_table(page, table(read("results.json")["rows"], read("recover.json")))
    except ValueError as error:
        sys.exit(str(error))
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(wanted)
    elif wanted != page:
        now, then = PLACE.search(page)[1].splitlines(), PLACE.search(wanted)[1].splitlines()
        lagging = [f"- {line}" for line in now if line not in then] + [f"+ {line}" for line in then if line not in now]
        sys.exit("\n".join(["README.md's table lags behind bench/; python3 tests/docs/readme_figures.py --write renews it:", *lagging]))


if __name__ == "__main__":
    main()
