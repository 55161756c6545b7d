#!/usr/bin/env python3
"""docs/numbers.md lists what is refused, and with which words. The sources must have these words, and tests/differential/dimensions.py exactly the
rows of the first table; each of its refusals must be drawn."""

import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/differential"))
from dimensions import REFUSED, refusals  # noqa: E402
from drawing import Drawing, comes_as_it_is, read_weights  # noqa: E402

MOST_SEEDS = 20_000


def tables():
    """The words of each row, by table."""
    text = (ROOT / "docs/numbers.md").read_text()
    section = text[text.index("## What is refused"):text.index("## How it is shown")]
    return [re.findall(r"^\|[^|]*\| `([^`]+)` \|", table, re.M) for table in section.split("|---|---|---|")[1:]]


def literals():
    """All string literals of the sources, those that stand side by side as one."""
    files = (file for folder in ("actors", "launch", "strategies", "tensor_io") for file in (ROOT / folder).rglob("*.?pp"))
    return re.sub(r'"\s*\n\s*"', "", "\n".join(file.read_text() for file in files))


def undrawn():
    left, drawing = list(REFUSED), Drawing(read_weights())
    for seed in filter(lambda seed: comes_as_it_is(random.Random(seed)), range(MOST_SEEDS)):  # others seldom are refused
        for refusal in refusals(drawing.draw(seed)):
            if refusal in left:
                left.remove(refusal)
        if not left:
            break
    return [refusal.says for refusal in left]


def main():
    drawn, others = tables()
    source = literals()
    named = [refusal.says for refusal in REFUSED]
    wrong = [f"docs/numbers.md has no row for the refusal '{says}'" for says in named if says not in drawn]
    wrong += [f"dimensions.py has no refusal for the row '{says}'" for says in drawn if says not in named]
    wrong += [f"'{says}' is in two rows" for says in {*drawn, *others} if (drawn + others).count(says) > 1]
    for says in drawn + others:
        words = re.sub(r"^\w+: ", "", says)  # without the setting's name
        wrong += [f"no source says '{part.strip()}' of '{says}'" for part in words.split("…") if part.strip() and part.strip() not in source]
    wrong += [f"none of {MOST_SEEDS} seeds draws the refusal '{says}'" for says in undrawn()]
    print("\n".join(wrong) or f"{len(drawn)} refusals that are drawn, {len(others)} others")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
