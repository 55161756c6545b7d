#!/usr/bin/env python3
"""A class has one subject: at most so many data members, and so many lines of source, its header's and its functions' together.

class_sizes.py [ROOT] [--table N]: the second prints the N largest and judges nothing."""

import pathlib
import re
import sys

MOST_MEMBERS, MOST_LINES = 20, 400
FOLDERS = ("actors", "tensor_io", "strategies", "launch", "troupe")
# Structs of settings, messages and reports are lists by nature: a class has at least one member that ends in `_`.
CLASS = re.compile(r"^(?: *)(?:class|struct) (?:alignas\(\d+\) )?(\w+(?:::\w+)*)(?: final)?(?: : [^;{]*| *)\{", re.M)
MEMBER = re.compile(r"(?<![\w.>])(\w+_)(?:\[\w*\])?(?=\s*(?:[;,={]|$))")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def closing(text, opening):
    """Where the brace that opens there is closed."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def flat(body):
    """The body without what stands in inner braces: declarations only."""
    kept, depth = [], 0
    for character in body:
        if character == "}":
            depth -= 1
        if depth == 0:
            kept.append(character)
        if character == "{":
            depth += 1
    return "".join(kept)


def data_members(body):
    names = set()
    for statement in flat(body).replace("_{}", "_").split(";"):
        statement = statement.rsplit("}", 1)[-1].strip()
        head = re.split(r"[={]", statement, 1)[0]
        if re.search(r"\b(using|friend|class|struct|enum|static|return|virtual|template)\b", statement) or re.search(r"\w\s*\([^)]*\)\s*(const|noexcept|override|$)", head) and "std::function" not in head:
            continue
        names.update(MEMBER.findall(statement + ";"))
    return names


def sizes(root):
    found = {}
    texts = {path: without_comments(path.read_text()) for folder in FOLDERS for path in sorted((root / folder).rglob("*.?pp"))}
    for path, text in texts.items():
        for match in CLASS.finditer(text):
            opening = match.end() - 1
            body = text[opening + 1:closing(text, opening)]
            entry = found.setdefault(match[1].split("::")[-1], {"path": path, "members": 0, "lines": 0})
            members = data_members(body)
            entry["members"] = max(entry["members"], len(members))
            entry["lines"] += sum(1 for line in body.split("\n") if line.strip())
    definition = re.compile(r"^(?!\s|#|namespace|return|using)[^\n;{}]*?\b(\w+)::~?\w+\([^;{}]*\)[^;{}]*\{", re.M)
    for path, text in texts.items():
        if path.suffix != ".cpp":
            continue
        for match in definition.finditer(text):
            if match[1] in found:
                block = text[match.start():closing(text, match.end() - 1)]
                found[match[1]]["lines"] += sum(1 for line in block.split("\n") if line.strip())
    return found


def main():
    arguments = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parents[2]
    found = {name: entry for name, entry in sizes(root).items() if entry["members"]}
    if "--table" in arguments:
        count = int(arguments[arguments.index("--table") + 1])
        for key in ("members", "lines"):
            print(f"the largest by {key}")
            for name, entry in sorted(found.items(), key=lambda item: -item[1][key])[:count]:
                print(f"{entry['members']:4} members {entry['lines']:5} lines  {name}  {entry['path'].relative_to(root)}")
        return 0
    wrong = [f"{entry['path'].relative_to(root)}: {name} has {entry['members']} data members and {entry['lines']} lines; at most {MOST_MEMBERS} and {MOST_LINES}"
             for name, entry in found.items() if entry["members"] > MOST_MEMBERS or entry["lines"] > MOST_LINES]
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
