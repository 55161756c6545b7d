#!/usr/bin/env python3
"""Each setting is one that `./dev differential` sets in its jobs, or undrawn_settings.txt says why not: an option that the net never draws is one
whose combinations were never asked."""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
FIELDS = HERE.parents[1] / "launch/config/config_fields.cpp"


def main():
    settings = set(re.findall(r'\{"[a-z_]+",\s*"([a-z0-9_]+)",\s*at\(&Config', FIELDS.read_text()))
    drawn = set(re.findall(r"\bconfig\.([a-z0-9_]+) \+?=", (HERE / "subject.cpp").read_text()))
    lines = [line.split(None, 1) for line in (HERE / "undrawn_settings.txt").read_text().splitlines() if not line.startswith("#")]
    listed = {name: reason for name, reason in lines}
    wrong = [f"{name}: draw it (dimensions.py, subject.cpp), or say in undrawn_settings.txt why not" for name in sorted(settings - drawn - listed.keys())]
    wrong += [f"undrawn_settings.txt: {name} is no setting" for name in sorted(listed.keys() - settings)]
    wrong += [f"undrawn_settings.txt: {name} is drawn" for name in sorted(listed.keys() & drawn)]
    print("\n".join(wrong) or f"{len(settings)} settings, {len(listed)} of them not drawn")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
