"""A test program with one broken source, beside the program that ninja has built: the source is compiled alone and linked before the libraries,
and of two definitions the linker takes the first. No file of the checkout changes, so several breaks are tried at once.

The libraries are compiled with -fPIC, where a compiler may not look through a call of a function that another object may define: a call within a
library reaches the broken one, too. What it does not reach are the other programs that a test starts, and inline functions of headers.
"""
import functools
import json
import os
import re
import shlex
import subprocess
import tempfile

from mutated import BUILD, ROOT, folder_of

SETTINGS = {"CCACHE_DISABLE": "1"}  # a broken source comes once


@functools.cache
def commands():
    """The command that compiles each source: its own, or that of the file that holds several sources."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        with open(entry["file"]) as file:
            sources = re.findall(r'^#include "(/[^"]+)"', file.read(), re.M) if "/Unity/" in entry["file"] else [entry["file"]]
        found.update((source, entry["command"]) for source in sources)
    return found


@functools.cache
def link_command(program):
    """The words of the command by which ninja links it, without what it runs afterwards."""
    target = str(folder_of(program).relative_to(BUILD))
    last = subprocess.run(["ninja", "-t", "commands", target], cwd=BUILD, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return shlex.split(last.removeprefix(": && ").split(" && ")[0])


def can_be_linked(source):
    """A program's own `main` would take the place of the tests'."""
    return str(ROOT / source) in commands() and not re.search(r"^int main\(", (ROOT / source).read_text(), re.M)


class Linked:
    """The program with `source` compiled from `text`, for a `with`: its path, or None where that does not compile or link."""

    def __init__(self, program, source, text, log):
        self.program, self.source, self.text, self.log = program, source, text, log

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mutation-", dir=BUILD)
        broken, compiled, linked = (f"{self.folder.name}/{name}" for name in ("broken.cpp", "broken.o", self.program))
        with open(broken, "w") as file:
            file.write(self.text)
        words = shlex.split(commands()[str(ROOT / self.source)])
        words = words[:words.index("-o")] + ["-o", compiled, "-c", broken]
        link = link_command(self.program)
        begin = link.index("-o")
        link = link[:begin] + ["-o", linked] + link[begin + 2:]
        first = next(i for i, word in enumerate(link) if word.endswith(".o"))
        link = link[:first] + ["-Wl,-z,muldefs", compiled] + link[first:]
        for command in (words, link):
            if subprocess.run(command, cwd=BUILD, stdout=self.log, stderr=self.log, env={**os.environ, **SETTINGS}).returncode != 0:
                return None
        return linked

    def __exit__(self, *_):
        self.folder.cleanup()
