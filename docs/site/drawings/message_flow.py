"""A step's messages, and those after a rank's death. Each is a struct of actors/messages, or the drawing fails."""
import pathlib
import re

from . import boxes

ROOT = pathlib.Path(__file__).resolve().parents[3]
ACTORS = {"agent": 70, "Coordinator": 205, "RankSupervisor": 350, "DataLoader": 475, "Compute": 600, "Reducer": 725, "other ranks": 850}
WIDTH, ROW = 920, 30
# (from, to, text, a message?) or (actor, text): what it does by itself.
STEP = [("Compute", "DataLoader", "GrantBatches", True), ("DataLoader", "Compute", "BatchLoaded", True), ("Compute", "forward and backward"),
        ("Compute", "Reducer", "BucketReady", True), ("Reducer", "other ranks", "all-reduce", False), ("Reducer", "Compute", "BucketsReduced", True),
        ("Compute", "other ranks", "vote", False), ("Compute", "commit: the optimizer changes the weights")]
DEATH = [("agent", "Coordinator", "RankExited", True), ("Coordinator", "agent", "StartRank", True), ("Coordinator", "RankSupervisor", "InterruptRanks", True),
         ("RankSupervisor", "Compute", "its communicators are aborted", False), ("RankSupervisor", "Coordinator", "RankInterrupted", True),
         ("other ranks", "Coordinator", "JoinJob, from the new process", True), ("Coordinator", "the plan goes into the journal"),
         ("Coordinator", "RankSupervisor", "Membership", True), ("Compute", "other ranks", "model, optimizer", False),
         ("Compute", "the same samples again, or the commit")]
COLUMNS = {"agent": "gold", "Coordinator": "gold", "other ranks": "grey"}


def known():
    return set(re.findall(r"^struct (\w+)", "".join(file.read_text() for file in sorted((ROOT / "actors/messages").glob("*.hpp"))), re.MULTILINE))


def panel(title, rows, top):
    out, bottom = [boxes.text(16, top, title, bold=True, size=14)], top + 62 + ROW * len(rows)
    for name, x in ACTORS.items():
        out += [f'<path d="M{x} {top + 44}V{bottom}" stroke="#c3c9d1" fill="none"/>', boxes.box(x - 54, top + 14, 108, 30, COLUMNS.get(name, "blue")),
                boxes.text(x, top + 33, name, "middle", 12)]
    for number, row in enumerate(rows):
        y = top + 76 + ROW * number
        if len(row) == 2:
            length = 7 * len(row[1]) + 16
            left = min(ACTORS[row[0]] - length / 2, WIDTH - 8 - length)
            out += [boxes.box(left, y - 18, length, 22, "red" if "again" in row[1] else "grey"), boxes.text(left + length / 2, y - 3, row[1], "middle", 12)]
            continue
        source, target, words, message = row
        if message and words.split(",")[0] not in known():
            raise SystemExit(f"message_flow: actors/messages has no {words}")
        begin, end = ACTORS[source], ACTORS[target]
        length = 6.6 * len(words) + 8
        middle = (begin + end) / 2
        out += [boxes.arrow(begin, y, end, y, both=not message and target == "other ranks" or words == "all-reduce", dashed=not message),
                f'<rect x="{middle - length / 2:g}" y="{y - 17}" width="{length:g}" height="14" fill="{boxes.PAPER}"/>', boxes.text(middle, y - 5, words, "middle", 12)]
    return out, bottom


def draw():
    step, bottom = panel("A step", STEP, 26)
    death, end = panel("A rank of this host dies within a step: what a survivor sees", DEATH, bottom + 40)
    note = boxes.text(16, end + 26, "Solid arrows: messages. Dashed: collectives and calls. DataLoader, Compute, Reducer and RankSupervisor are one rank's.", size=12, colour=boxes.FAINT)
    return boxes.svg(WIDTH, end + 40, "The messages of a step, and those after a rank's death", [*step, *death, note])
