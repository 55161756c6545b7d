"""What a reader would type. commands.py run|hold BINARY_DIR [PAGE..]

hold  every command and every `--flag` of the pages, in blocks and in `code`, is one that the programs have
run   every sh, console and python block runs, in a scratch folder of its page, with small settings; what a page says must not be run is not, nor
      is ./dev, which other tests run. Of docs/howto CI runs a share
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import blocks

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from share import in_share  # noqa: E402

SECONDS = 90  # for one block
# Settings that make any run short; a command's own flags are stronger.
SMALL = {"TROUPE_MAX_STEPS": "6", "TROUPE_EPOCHS": "1", "TROUPE_LOG_INTERVAL": "2", "TROUPE_BATCH_SIZE": "16", "OMP_NUM_THREADS": "1"}
# Programs of others: what they take is not looked at.
FOREIGN = {"apt", "apt-get", "awk", "cat", "cd", "cmake", "cp", "ctest", "curl", "docker", "dpkg", "echo", "exit", "export", "gdb", "git", "grep",
           "head", "ip", "kill", "ln", "ls", "mkdir", "mlflow", "ninja", "pip", "pip3", "printf", "python3", "rm", "sbatch", "scontrol", "scp", "sed",
           "nsys", "set", "sleep", "source", "srun", "ssh", "sudo", "tail", "taskset", "tensorboard", "test", "torchrun", "trap", "true", "unshare",
           "wait", "wandb", "wg", "xdg-open", "venv/bin/pip", "/opt/troupe/bin/pip", "/opt/troupe/bin/python3"}
# Flags of others, and of a reader's program (--hidden), that pages name in `code`.
FOREIGN_FLAGS = {"--no-python", "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--no-deps", "--strict",
                 "--prefix", "--install", "--rdzv-backend", "--rdzv-endpoint", "--standalone", "--max-restarts", "--test-dir", "--cap-add", "--gpus",
                 "--hostfile", "--ntasks-per-node", "--signal", "--preserve-status", "--write", "--shm-size", "--network", "--no-kill", "--hidden"}


def lines_of(block):
    """Commands of a block, continued lines joined, comments dropped."""
    lines = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        if line.strip() and not line.lstrip().startswith("#"):
            lines.append(line)
    return lines


class Programs:
    """What our programs say of themselves."""

    def __init__(self, binaries):
        self.binaries = binaries
        self.helps = {}

    def help_of(self, *command):
        if command not in self.helps:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
            self.helps[command] = done.stdout + done.stderr
        return self.helps[command]

    def troupe(self, *words):
        return self.help_of(str(self.binaries / "launch/troupe"), *words)

    def verbs(self):
        return set(re.findall(r"^  (\w[\w-]*)", self.troupe("--help"), re.M)) | {"help", "coordinator", "node"}

    def flags_of_verb(self, verb):
        if verb in ("compile", "pack"):  # in Python: their help wants PyTorch
            return set(re.findall(r'"(-o|--[a-z][\w-]*)"', (blocks.ROOT / f"python/troupe/{verb}.py").read_text()))
        return set(re.findall(r"--[a-z][\w-]*", self.troupe(verb, "--help") + self.troupe("--help"))) | {"-n"}

    def program(self, name):
        known = {"train": "image_classifier", "image_classifier": "image_classifier"}
        return self.binaries / "examples" / known.get(name, name) / known.get(name, name)

    def flags_of_program(self, name):
        # What is declared by a program comes with its help; - and _ are alike.
        path = self.program(name)
        flags = set(re.findall(r"--[a-z][\w-]*", self.help_of(str(path), "--help"))) if path.exists() else self.flags_of_program("train")
        return {flag.replace("-", "_") for flag in flags}

    def dev_verbs(self):
        return set(re.findall(r"^  ([a-z][a-z-]*)", self.help_of(str(blocks.ROOT / "dev"), "help"), re.M))

    def dev_flags(self):
        # Verbs that hand their flags on to a script of ours.
        scripts = "".join((blocks.ROOT / path).read_text() for path in ("bench/run.py", "bench/recover.py"))
        return set(re.findall(r"--[a-z][\w-]*", self.help_of(str(blocks.ROOT / "dev"), "help"))) | set(re.findall(r'add_argument\("(--[a-z][\w-]*)', scripts))

    def all_flags(self):
        flags = {flag for name in ("train", "gpt") for flag in self.flags_of_program(name)}
        for verb in self.verbs() - {"help", "coordinator", "node"}:
            flags |= {flag.replace("-", "_") for flag in self.flags_of_verb(verb)}
        return flags | {flag.replace("-", "_") for flag in self.dev_flags() | FOREIGN_FLAGS}


def flag_name(word):
    return word.split("=")[0].replace("-", "_")


def faults_of(line, programs):
    """What is wrong with one line of a shell, as far as it calls programs of ours."""
    line = re.sub(r"\s#\s.*$", "", line).replace("…", " ")
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        yield f"no shell reads this: {error}"
        return
    command = []
    for word in [*words, ";"]:
        if word not in (";", "&", "&&", "||", "|"):
            command.append(word.rstrip(";"))
            if not word.endswith(";"):
                continue
        while command and re.match(r"^\w+=", command[0]):
            command.pop(0)
        if command:
            yield from faults_of_command(command, programs)
        command = []


def faults_of_command(command, programs):
    name = pathlib.PurePath(command[0]).name
    rest = [word for word in command[1:] if word not in (">", "<", "2>&1")]
    if name == "dev":
        if not rest or rest[0] not in programs.dev_verbs():
            yield f"./dev has no verb '{rest[0] if rest else ''}'"
        elif unknown := [word for word in rest[1:] if word.startswith("--") and word.split("=")[0] not in programs.dev_flags() and rest[0] not in ("demo",)]:
            yield f"./dev help names no {unknown[0]}"
    elif name == "troupe":
        if not rest or (rest[0] not in programs.verbs() and not rest[0].startswith("--")):
            yield f"troupe has no verb '{rest[0] if rest else ''}'"
            return
        flags = {flag_name(flag) for flag in programs.flags_of_verb(rest[0])}
        values_of = re.findall(r"(--[a-z][\w-]*) +(?:[A-Z][A-Z|_]*|[a-z]+=\S+|FILE\S*)", programs.troupe("launch", "--help"))
        i = 1
        while i < len(rest):
            word = rest[i]
            if word.startswith("-") and word != "--":
                if flag_name(word) not in flags:
                    yield f"troupe {rest[0]} has no flag {word}"
                i += 2 if word in values_of and "=" not in word else 1
            elif rest[0] == "launch":
                yield from faults_of_command(rest[i:], programs)
                return
            else:
                i += 1
    elif command[0] in ("./train", "./mine") or "examples/" in command[0] or name in ("hello_troupe", "image_classifier", "gpt", "own_loop"):
        flags = programs.flags_of_program(name)
        for word in rest:
            if word.startswith("--") and flag_name(word) not in flags:
                yield f"{name} has no flag {word}"
    elif name not in FOREIGN and command[0] not in FOREIGN and not command[0].startswith(("build/", "PROGRAM", "$")):
        yield f"which program is '{command[0]}'?"


def spans_of(text):
    """`code` outside of blocks, with its line."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"^\s*```", line):
            inside = not inside
        elif not inside:
            for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
                yield number, span


def tests_that_are_not():
    """What the abort contract names as a test, and no source has."""
    sources = {path.stem: path.read_text() for path in (blocks.ROOT / "tests").rglob("*_test.cpp")}
    names = "\n".join(name for text in sources.values() for name in re.findall(r'TEST_CASE\(\s*"([^"]*)"', text))
    rows = re.findall(r"^\| (A\d+) \|.*\| ([^|]*) \|$", (blocks.ROOT / "docs/abort_contract.md").read_text(), re.M)
    assert len(rows) >= 10, rows
    for number, cell in rows:
        named = re.findall(r"`([^`]+)`", cell)
        files = re.findall(r"\b(\w+_test)\b", cell)
        if not named and not files and cell != "the same":
            yield f"docs/abort_contract.md: {number} names no test"
        yield from (f"docs/abort_contract.md: {number}: no test is called '{name}'" for name in named if not re.search(re.escape(name) + r"\b", names))
        yield from (f"docs/abort_contract.md: {number}: there is no {file}.cpp" for file in files if file not in sources)


def hold(programs, pages):
    known = programs.all_flags()
    found = list(tests_that_are_not())
    for page in pages:
        name = str(page.relative_to(blocks.ROOT))
        for block in blocks.blocks_of(name, page.read_text()):
            if block.language in ("sh", "console"):
                found += [f"{block.place}: {line}\n    {fault}" for line in lines_of(block) for fault in faults_of(line, programs)]
            if block.language == "python":
                compile(block.text, block.place, "exec")
        for number, span in spans_of(page.read_text()):
            if re.match(r"^(troupe [a-z]|\./dev [a-z]|\./train )", span) and not span.startswith("troupe launch …"):
                found += [f"{name}:{number}: {span}\n    {fault}" for fault in faults_of(span.replace("|", " "), programs)] if "|" not in span else []
            for flag in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", span):
                if flag_name(flag) not in known:
                    found.append(f"{name}:{number}: {span}\n    nothing of ours has a flag {flag}")
    return found


def run_block(block, folder):
    """Whether anything ran, and what went wrong or None."""
    lines = [line for line in lines_of(block) if not line.lstrip().startswith("./dev ")]
    command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    if block.language == "python":
        lines, command = block.text.splitlines(), [sys.executable, "-c", block.text]
    if not lines:
        return False, None
    env = {**os.environ, **SMALL, "PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": str(folder)}
    shell = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = shell.communicate(timeout=SECONDS)
        code = shell.returncode
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        output, code = shell.communicate()[0], f"not over after {SECONDS} s"
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)  # what it left in the background
        except ProcessLookupError:
            pass
    return True, None if code == 0 else f"{block.place}: exit code {code}\n{chr(10).join(lines)}\n--\n{output[-3000:]}"


def scratch(binaries):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-docs-"))
    for name in ("examples", "data", "docs", "README.md", "LICENSE"):
        (folder / name).symlink_to(blocks.ROOT / name)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(binaries)
    (folder / "bin").mkdir()
    (folder / "bin/troupe").symlink_to(binaries / "launch/troupe")
    # ./train stands for a reader's own program: the image classifier on the digits that come with the project.
    train = folder / "train"
    train.write_text(f'#!/bin/sh\nexec {binaries}/examples/image_classifier/image_classifier --config examples/image_classifier/digits.toml "$@"\n')
    train.chmod(0o755)
    return folder


def run(binaries, pages):
    found = []
    for page in pages:
        name = str(page.relative_to(blocks.ROOT))
        if page.parent.name == "howto" and not in_share(0.3, name):
            continue
        folder = None
        started, ran, left = time.monotonic(), 0, []
        for block in blocks.blocks_of(name, page.read_text()):
            if block.language not in ("sh", "console", "python"):
                continue
            if ": not run: " in block.mark:
                left.append(f"{block.place} ({block.mark.split(': not run: ')[1]})")
                continue
            folder = folder or scratch(binaries)
            has_run, fault = run_block(block, folder)
            ran += has_run
            if fault:
                found.append(fault)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if ran or left:
            print(f"{name}: {ran} blocks in {time.monotonic() - started:.0f} s" + (f"; not run: {', '.join(left)}" if left else ""), flush=True)
    return found


def check_itself(programs):
    for good in ("troupe launch --nproc 2 ./train --lr 0.1", "./dev demo --kill", "troupe checkpoint ls runs", "A=1 ./train --ranks=2 && ls -l"):
        assert not list(faults_of(good, programs)), (good, list(faults_of(good, programs)))
    for bad in ("troupe lunch", "troupe launch --nporc 2 ./train", "troupe launch --nproc 2 ./train --lrr 1", "./train --lrr 1", "./dev demmo",
                "cd a && ./train --lrr 1", "frobnicate"):
        assert list(faults_of(bad, programs)), bad


def main():
    what, binaries = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    pages = [blocks.ROOT / page for page in sys.argv[3:]] or blocks.pages()
    programs = Programs(binaries)
    check_itself(programs)
    found = hold(programs, pages) if what == "hold" else run(binaries, pages)
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
