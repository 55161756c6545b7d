#!/usr/bin/env python3
"""A class has one subject: at most 20 data members, and 400 lines of source, its header's and its functions' together. Strategy has
at most 22 virtual functions.

class_sizes.py [--table N]: with N it prints the N largest and judges nothing. Before it judges, it counts a class with known
sizes, so that a count that sees nothing cannot pass."""

import pathlib
import re
import sys

MOST_MEMBERS, MOST_LINES = 20, 400
# What every strategy has to know; what only some can do is a capability, in a header beside it.
MOST_VIRTUALS = {"actors/strategy/strategy.hpp": 22}
FOLDERS = ("actors", "tensor_io", "strategies", "launch", "troupe")
# Only what has functions outside of its body is judged: structs of settings, messages and reports are lists by nature.
CLASS = re.compile(r"^(?: *)(?:class|struct) (?:alignas\(\d+\) )?(\w+(?:::\w+)*)(?: final)?(?: : [^;{]*| *)\{", re.M)


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


def without_templates(text):
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def data_members(body):
    """Names of the data members that a class's body declares."""
    names = set()
    for statement in flat(body).replace("{}", "").split(";"):
        statement = without_templates(re.sub(r"^\s*(public|private|protected):", "", statement.strip()).strip())
        head = re.split(r"=(?!=)", statement, maxsplit=1)[0]
        if not head or re.search(r"\b(using|friend|class|struct|enum|static|return|virtual|template|typedef|operator)\b", head) or "(" in head:
            continue
        declared = re.match(r"(?:(?:const|mutable|unsigned|volatile)\s+)*[\w:]+[\s&*]+(.+)$", head, re.S)
        if declared:
            names.update(re.findall(r"(\w+)(?:\[\w*\])?\s*(?:,|$)", statement_names(declared[1], statement)))
    return names


def statement_names(declared, statement):
    """`a, b` of `int a = 1, b = 2`: initializers left out."""
    rest = statement[statement.index(declared):]
    return re.sub(r"=(?!=)[^,]*", "", rest).strip()


def sizes(root):
    """By top folder and name: two folders may have a class of one name."""
    found = {}
    texts = {path: without_comments(path.read_text()) for folder in FOLDERS for path in sorted((root / folder).rglob("*.?pp"))}
    for path, text in texts.items():
        for match in CLASS.finditer(text):
            opening = match.end() - 1
            body = text[opening + 1:closing(text, opening)]
            entry = found.setdefault((path.relative_to(root).parts[0], match[1].split("::")[-1]), {"path": path, "members": 0, "lines": 0, "has_functions": False})
            members = data_members(body)
            entry["members"] = max(entry["members"], len(members))
            entry["lines"] += sum(1 for line in body.split("\n") if line.strip())
    definition = re.compile(r"^(?!\s|#|namespace|return|using)[^\n;{}]*?\b(\w+)::~?\w+\([^;{}]*\)[^;{}]*\{", re.M)
    for path, text in texts.items():
        if path.suffix != ".cpp":
            continue
        for match in definition.finditer(text):
            key = (path.relative_to(root).parts[0], match[1])
            if key in found:
                found[key]["has_functions"] = True
                block = text[match.start():closing(text, match.end() - 1)]
                found[key]["lines"] += sum(1 for line in block.split("\n") if line.strip())
    return found


EXAMPLE = """
class Example {
 public:
  explicit Example(int a) : a_(a) {}
  int a() const { return a_; }  // not a member
  void run();

 private:
  struct Inner {
    int x = 0, y = 0;
  };
  int a_;
  std::map<int, std::string> names_, others_;
  std::function<void(int)> call_;
  Part part_{a_};
  static int count_;
};
void Example::run() {
  a_ = 1;
}
"""


def check_counting():
    body = EXAMPLE[EXAMPLE.index("{") + 1:closing(EXAMPLE, EXAMPLE.index("{"))]
    assert data_members(body) == {"a_", "names_", "others_", "call_", "part_"}, data_members(body)


def main():
    arguments = sys.argv[1:]
    check_counting()
    root = pathlib.Path(__file__).resolve().parents[2]
    found = {key: entry for key, entry in sizes(root).items() if entry["has_functions"]}
    if "--table" in arguments:
        count = int(arguments[arguments.index("--table") + 1])
        for key in ("members", "lines"):
            print(f"the largest by {key}")
            for (_, name), entry in sorted(found.items(), key=lambda item: -item[1][key])[:count]:
                print(f"{entry['members']:4} members {entry['lines']:5} lines  {name}  {entry['path'].relative_to(root)}")
        return 0
    wrong = []
    for (_, name), entry in found.items():
        if entry["members"] > MOST_MEMBERS or entry["lines"] > MOST_LINES:
            wrong.append(f"{entry['path'].relative_to(root)}: {name} has {entry['members']} data members and {entry['lines']} lines; "
                         f"at most {MOST_MEMBERS} and {MOST_LINES}: give a part of it a class")
    for path, most in MOST_VIRTUALS.items():
        virtuals = len(re.findall(r"\bvirtual (?!~)", without_comments((root / path).read_text())))
        if virtuals > most:
            wrong.append(f"{path}: {virtuals} virtual functions, at most {most}: make a capability of what only some classes override")
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
