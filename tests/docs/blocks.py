"""The fenced blocks of README.md, CONTRIBUTING.md, SECURITY.md, docs/, docs/howto/ and docs/reference/. `blocks.py cpp OUT.cpp` writes
one C++ unit of all their C++.

A block's language says what a test does with it:

    cpp      compiled: a whole program, or a fragment in the surroundings that the comment before it names: `<!-- cpp: rank -->`, one of
             preambles.hpp (job, rank, conformance), or `top` for what stands outside of functions
    sh       run in a scratch folder, or, with a comment before it (`<!-- sh: not run: it needs a second host -->`), held to the flags that
             the programs have
    console  the same for lines that begin with `$ `; the others are output
    python   run in the page's scratch folder, after what comes before it, or with `<!-- python: not run: why -->` parsed
    text     output, or another file's content; so is a block without a language, in which no line may look like a command of ours
"""
import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = {"cpp", "sh", "console", "python", "text", "toml", "json", "cmake", "yaml"}
COMMAND = re.compile(r"^(\$ |troupe |\./dev |\./train|build/\w+/(launch|examples|bench)/|ctest |cmake |pip install )")
MARK = re.compile(r"^<!-- (cpp|sh|python): (.*?) -->$")


@dataclasses.dataclass
class Block:
    page: str
    line: int  # of its first line
    language: str
    mark: str  # what the comment before it says; empty without one
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, text):
    """Throws ValueError about a fence that is not closed, has no known language, or hides a command."""
    blocks, opened, mark = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"^\s*```(.*)$", line)
        if opened is None:
            if fence:
                opened = Block(page, number + 1, fence[1].strip() or "text", mark, "")
                if opened.language not in LANGUAGES:
                    raise ValueError(f"{page}:{number}: a block in '{opened.language}', of which no test knows what to do with it")
            found = MARK.match(line)
            mark = f"{found[1]}: {found[2]}" if found else mark if not line.strip() else ""
        elif fence:
            blocks.append(opened)
            opened = None
            mark = ""
        else:
            if opened.language == "text" and COMMAND.match(line):
                raise ValueError(f"{page}:{number}: a command in a block that says neither sh nor console: {line}")
            opened.text += line + "\n"
    if opened is not None:
        raise ValueError(f"{opened.place}: this block has no end")
    return blocks


def pages():
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted((ROOT / "docs").glob("*.md")),
            *sorted((ROOT / "docs/howto").glob("*.md")), *sorted((ROOT / "docs/reference").glob("*.md"))]


def all_blocks():
    return [block for page in pages() for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())]


def cpp_unit(blocks):
    """One unit: every block in a namespace of its own, its includes before all, its lines counted as in its page."""
    out = ['#include "tests/docs/preambles.hpp"']
    body, seen = [], {}
    for n, block in enumerate([block for block in blocks if block.language == "cpp"]):
        code = block.text.split("\n")
        for i, line in enumerate(code):
            if line.startswith("#include"):
                out.append(line)
                code[i] = ""
        where = block.mark.removeprefix("cpp: ")
        if "int main(" in block.text:
            where = "top"
        if where == "":
            raise ValueError(f"{block.place}: say in which surroundings this is compiled: <!-- cpp: rank -->, for example")
        begin, end = ("", "") if where == "top" else (f"TROUPE_DOCS_{where.upper()} {{", "}")
        earlier = [f"using namespace docs::block_{k};" for k in seen.get(block.page, [])]
        if where == "top" and "int main(" not in block.text:
            seen.setdefault(block.page, []).append(n)  # what a page has declared its later blocks may use
        body += [f"namespace docs::block_{n} {{", *earlier, begin, f'#line {block.line} "{block.page}"', *code, end, "}"]
    return "\n".join(dict.fromkeys(out)) + "\n" + "\n".join(body) + "\n"


def check_itself():
    good = "a\n\n<!-- sh: not run: why -->\n\n```sh\nls\n```\n```\nout\n```\n"
    first, second = blocks_of("p", good)
    assert (first.language, first.mark, first.text, first.line) == ("sh", "sh: not run: why", "ls\n", 6)
    assert (second.language, second.mark) == ("text", "")
    for bad in ("```\n./dev demo\n```\n", "```sh\nls\n", "```fish\nls\n```\n"):
        try:
            blocks_of("p", bad)
        except ValueError:
            continue
        raise AssertionError(f"no fault found in {bad!r}")
    unit = cpp_unit(blocks_of("p", "<!-- cpp: rank -->\n```cpp\n#include <map>\nint a;\n```\n"))
    assert unit.index("#include <map>") < unit.index("TROUPE_DOCS_RANK {") < unit.index('#line 3 "p"') < unit.index("int a;")


if __name__ == "__main__":
    check_itself()
    try:
        unit = cpp_unit(all_blocks())
    except ValueError as error:
        sys.exit(f"{error}")
    pathlib.Path(sys.argv[2]).write_text(unit)
