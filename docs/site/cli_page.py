"""docs/reference/cli.md: every verb of `troupe`, from its --help. What the sources take and a help does not name is an error, and the other way round."""
import argparse
import html
import importlib
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = "launch/command/troupe_command.cpp"
# Where a verb's flags are read. A file that has several verbs names each in its read_words.
SOURCES = {"launch": COMMAND, "doctor": "launch/doctor/doctor.cpp", "debug": "launch/debug/debug_command.cpp", "report": "launch/command/report_command.cpp",
           "checkpoint": "launch/command/checkpoint_tool.cpp", "top": "launch/observe/top.cpp", "drain": "launch/jobs/drain_command.cpp",
           "attach": "launch/jobs/jobs_command.cpp", "ps": "launch/jobs/jobs_command.cpp"}
INNER_VERBS = {"coordinator", "node"}  # which the launcher starts
INNER_FLAGS = {"--agent", "--help", "-h"}
# Verbs in Python: their exit codes and examples are here, since argparse's help has no place for them.
IN_PYTHON = {
    "compile": ("0, or 2 if the model cannot be compiled, or 1 if Python has no PyTorch", "troupe compile gpt.py:make -o gpt.tm"),
    "pack": ("0, or 2 if the data set cannot be packed, or 1 if Python has no PyTorch", "troupe pack data.py:make -o data"),
}
# Why a test does not run an example.
NOT_RUN = {
    "doctor": "it takes two hosts", "compile": "it needs PyTorch for Python", "pack": "it needs PyTorch for Python", "train": "it takes a compiled model",
    "debug": "it runs the program several times; tests/launch/debug does so", "attach": "it takes a detached job", "drain": "it takes a job on hosts",
}
TRAIN_EXAMPLE = "troupe launch --nproc 2 troupe train --model gpt.tm --data packed --data_dir data"

INTRODUCTION = """# Command line

Generated from what `troupe VERB --help` prints; `python3 tests/docs/reference.py --write build/release` writes it anew.

`troupe` starts jobs and looks after them. Each verb has a section below. In flags `-` and `_` are the same, and `--name=value` is the same as
`--name value`. Words in capitals, such as `PATH`, stand for your own values.

All verbs end with 2 if a flag or an argument is wrong. [Exit codes](exit_codes.md) lists the codes of a job. `troupe --version` prints the version,
and `troupe --help` lists the verbs:

| verb | what it does |
|---|---|
"""

PROGRAMS = """
## Your own program

A program that calls `troupe::run` or `troupe::main` takes every setting as a flag: `./train --lr 0.05`. [Settings](../config.md) lists them all. A
setting that is on or off takes no value: `--use_amp`, `--no-use_amp`. A program also takes the flags under [troupe train](#troupe-train), except
those of a compiled model. It takes the settings that it declares itself, too ([recipes](../recipes.md)).
"""


def output_of(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join([pathlib.Path(program).name, *words])} ended with {done.returncode}: {done.stderr.strip()}")
    if wide := [line for line in done.stdout.splitlines() if len(line) > 100]:
        raise ValueError(f"{' '.join(words)}: a line of more than 100 columns: {wide[0]}")
    return done.stdout


def rows_of(lines):
    """(what is typed, its text) of lines `  flags   text`, wrapped ones joined."""
    rows = []
    for line in lines:
        if re.match(r"  \S", line):
            lead, _, text = line.strip().partition("   ")
            rows.append([lead.strip(), text.strip()])
        elif line.startswith("   ") and rows:
            rows[-1][1] = f"{rows[-1][1]} {line.strip()}".strip()
        elif line.strip():
            raise ValueError(f"a help has this line among its flags: {line}")
    return rows


class Help:
    """A help in parts: usage, paragraphs, rows, exit code, example."""

    def __init__(self, verb, text):
        self.verb, self.paragraphs, self.rows, self.exit, self.example = verb, [], [], "", ""
        blocks = [block.splitlines() for block in re.split(r"\n\n+", text.strip("\n"))]
        self.usage = blocks.pop(0)
        for block in blocks:
            if block[0].startswith("  "):
                self.rows += rows_of(block)
                continue
            words = " ".join(line.strip() for line in block)
            last = re.fullmatch(r"(?:exit code: (.*?) )?example: (.*)", words)
            if last:
                self.exit, self.example = last[1] or "", last[2]
            else:
                self.paragraphs.append(words)
        if not self.exit or not self.example:
            raise ValueError(f"troupe {verb} --help does not end with `exit code: ...` and `example: ...`")

    def flags(self):
        return {flag for lead, _ in self.rows for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", lead)}


def verbs(program):
    """(verb, its usages and texts) in the order of `troupe --help`."""
    found = {}
    lines = output_of(program, "--help").splitlines()
    for lead, text in rows_of(lines[2:lines.index("", 2)]):
        if not lead.startswith("-"):
            found.setdefault(lead.split()[0], []).append((lead, text))
    known = set(re.findall(r'verb == "([a-z]+)"', (ROOT / COMMAND).read_text())) - INNER_VERBS - {"help"}
    for verb in sorted(known ^ set(found)):
        raise ValueError(f"troupe --help and {COMMAND} do not have the same verbs: {verb}")
    return found


def flags_in_source(verb):
    source = (ROOT / SOURCES[verb]).read_text()
    # The list of flags stands between read_words( or read_flags( and the command's name.
    call = re.search(rf'read_(?:words|flags)\((?:(?!read_words|read_flags).)*?"troupe {verb}"', source, re.DOTALL)
    return set(re.findall(r'\{"(--?[a-z][\w-]*)",', call[0])) - INNER_FLAGS


def check_flags(verb, named):
    if verb not in SOURCES:
        return
    taken = flags_in_source(verb)
    for flag in sorted(taken - named):
        raise ValueError(f"troupe {verb} takes {flag}, which its --help does not name")
    for flag in sorted(named - taken):
        raise ValueError(f"troupe {verb} --help names {flag}, which {SOURCES[verb]} does not take")


def python_help(verb):
    """The parser of a verb in Python; nothing of PyTorch is imported."""
    class Caught(Exception):
        pass

    def catch(parser, *_):
        raise Caught(parser)

    sys.path.insert(0, str(ROOT / "python"))
    real, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, catch
    try:
        importlib.import_module(f"troupe.{verb}").main([])
    except Caught as caught:
        parser = caught.args[0]
    finally:
        argparse.ArgumentParser.parse_args = real
        sys.path.pop(0)
    rows, usage = [], [f"usage: troupe {verb}"]
    for action in parser._actions:
        if "--help" in action.option_strings:
            continue
        if not action.help:
            raise ValueError(f"troupe {verb}: {action.dest} has no help")
        value = "" if action.nargs == 0 else " " + (action.metavar or "|".join(action.choices))
        names = [name + value for name in action.option_strings] or [action.metavar]
        rows.append([", ".join(names), action.help])
        usage.append(names[0] if action.required else f"[{names[0]}]")
    return " ".join(usage), re.sub(r"\s+", " ", parser.description), rows


def train_rows(program):
    """What `troupe train` takes beside the settings, all of which must be in docs/config.md."""
    settings, rows = (ROOT / "docs/config.md").read_text(), []
    for section in re.split(r"\n(?=\[\w+\]\n)", output_of(program, "train", "--help"))[1:]:
        name, *lines = section.strip("\n").splitlines()
        listed = [(lead, text) for lead, text in rows_of(lines)]
        if name in ("[program]", "[other]"):
            rows += [(lead.replace("--model ''", "--model MODEL"), text) for lead, text in listed]
            continue
        for lead, _ in listed:
            setting = re.match(r"--(\w+)", lead)[1]
            if f"| `{setting}` |" not in settings:
                raise ValueError(f"troupe train --help names {setting}, which docs/config.md lacks")
    return rows


def cell(text):
    return text.replace("|", "\\|")


def code(text):
    """In a cell of a table. In backticks GitHub wants \\| for |, and MkDocs shows the backslash."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def table(rows):
    cells = []
    for lead, meaning in rows:
        default = re.search(r" \(default:? ([^()]*)\)(?=$|;)", meaning)
        if default:
            meaning = meaning.replace(default[0], "")
        value, _, more = default[1].partition("; ") if default else ("", "", "")
        names = ", ".join(code(name) for name in re.split(r", (?=-)", lead))  # `--nproc N, -n N` are two
        cells.append((names, cell(value), cell(linked(meaning + (f" ({more})" if more else "")))))
    if not any(value for _, value, _ in cells):
        return "| flag or argument | meaning |\n|---|---|\n" + "".join(f"| {names} | {meaning} |\n" for names, _, meaning in cells)
    return "| flag or argument | default | meaning |\n|---|---|---|\n" + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def linked(text):
    """With flags, files and settings as code, and docs/... as links."""
    text = re.sub(r"docs/(?:reference/)?(\w+\.md)", lambda path: f"[{path[0]}]({'' if 'reference/' in path[0] else '../'}{path[1]})", text)
    parts = re.split(r"(`[^`]*`|\[[^\]]*\]\([^)]*\))", text)
    return "".join(part if n % 2 else re.sub(r"(?<![\w`-])(--[a-z][\w.-]*\w)", r"`\1`", part).replace("<", "&lt;") for n, part in enumerate(parts))


def section(verb, usage, paragraphs, rows, exit_code, example):
    text = f"\n## troupe {verb}\n\n"
    text += "```text\n" + "\n".join(usage) + "\n```\n\n"
    text += "".join(textwrap.fill(linked(paragraph), 150, break_long_words=False, break_on_hyphens=False) + "\n\n" for paragraph in paragraphs)
    text += table(rows) + "\n" if rows else ""
    mark = f"<!-- sh: not run: {NOT_RUN[verb]} -->\n" if verb in NOT_RUN else ""
    return text + f"Exit code: {linked(exit_code)}.\n\n{mark}```sh\n{example}\n```\n"


def page(binaries):
    program = str(pathlib.Path(binaries).resolve() / "launch/troupe")
    text, sections = INTRODUCTION, ""
    for verb, usages in verbs(program).items():
        text += "".join(f"| [{code(lead)}](#troupe-{verb}) | {cell(linked(meaning))} |\n" for lead, meaning in usages)
        if verb in IN_PYTHON:
            usage, description, rows = python_help(verb)
            sections += section(verb, [usage], [description], rows, *IN_PYTHON[verb])
        elif verb == "train":
            sections += section(verb, ["usage: troupe train --model MODEL [--config FILE.toml] [--name value ...]"], [
                "Trains a model that `troupe compile` wrote. It is a program for `troupe launch`, and alone it is one rank. It takes every setting of "
                "docs/config.md as a flag, and these:"], train_rows(program), "that of a rank (docs/reference/exit_codes.md)", TRAIN_EXAMPLE)
        else:
            own = Help(verb, output_of(program, verb, "--help"))
            check_flags(verb, own.flags())
            sections += section(verb, own.usage, own.paragraphs, own.rows, own.exit, own.example)
    return text + sections + PROGRAMS
