"""docs/reference/exit_codes.md: from the enum ErrorCode and its facts in tensor_io/base/error.{hpp,cpp}. A new code appears by itself."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER, SOURCE = "tensor_io/base/error.hpp", "tensor_io/base/error.cpp"
# What to do. The error's own line says more; a code without an entry has only that.
REMEDIES = {
    "ok": "none",
    "usage": "correct the flag, the setting or the call that the line names; `--help NAME` describes a setting",
    "bad_data": "repair or replace the file that the line names; `on_bad_sample = \"skip\"` leaves out bad samples",
    "mismatch": "start all ranks with the same program, settings and data, and launch the same collectives on each",
    "unavailable": "`troupe doctor` checks hosts, ports, devices and libraries",
    "io": "look at the free space and the permissions of the path",
    "timeout": "compare the files `ledger-rankN.jsonl`: the rank without the unfinished line did not come; if ranks are slow, raise `collective_timeout`",
    "aborted": "read the error of the rank that failed first",
    "peer_lost": "read the log of the rank that died",
    "not_finite": "lower `lr`, set `clip_norm`, or `on_not_finite = \"skip\"`",
    "user": "correct the program; the line has the text of the exception",
    "interrupted": "the same command with `--resume auto` goes on",
    "parked": "the same command with `--resume auto` goes on",
    "state_lost": "the same command with `--resume auto` goes on from the last checkpoint",
    "fenced": "none: the job goes on; the launcher's output says why the process was left out",
    "internal": "report it, with the logs of all ranks",
    "device_lost": "look for the device in nvidia-smi and dmesg (Xid); a kernel's own fault comes again: CUDA_LAUNCH_BLOCKING=1 shows which it was",
}
REPLACED = {"device_lost"}  # the process is ended, and another one takes its place
OTHERWISE = "the error's line says it"

INTRODUCTION = """# Exit codes

Generated from [tensor_io/base/error.hpp](../../tensor_io/base/error.hpp) and [error.cpp](../../tensor_io/base/error.cpp);
`python3 tests/docs/reference.py --write` writes it anew.

A process that fails prints one line: rank, actor, step, operation, cause and remedy. Its exit code depends on the kind of failure. In C++ the kind is
`troupe::ErrorCode`, and `troupe::exit_code` maps it to the exit code.

## Of a rank

These are the exit codes of a program that calls `troupe::run` or `troupe::main`, and of most verbs of `troupe`. *Recovery* says whether the other
ranks may go on in a new generation after this failure, if recovery is on. It is on under `troupe launch` without `--no-recovery`.

| exit code | `ErrorCode` | in messages | cause | recovery | remedy |
|---|---|---|---|---|---|
"""

LAUNCHER = """
A rank that a signal ends has no `ErrorCode`. Its death is recovered like any other, unless the program has the same fault again
([survive failures](../survive_failures.md#when-it-is-the-program)).

## Of troupe launch

| exit code | when |
|---|---|
| 0 | All ranks ended well, also if some died and were replaced. `--dry-run` and `--help` also end with 0, and so does `--detach` once all ranks have begun. |
| 2 | A flag, a setting or the host list is wrong. With `--slurm` the surplus tasks end with 2, too, if srun starts more than one launcher on a node. |
| 69 | The program is not there, a host cannot be reached (ssh's own exit code 255 becomes 69), or a host's agent did not start. |
| 70 | The program ended with the same fault in two lives of a rank, so the job was given up. |
| 75 | The job saved and ended, since fewer ranks than `--min-ranks` were left or there was no quorum. Or its state was lost more often than `--max-restarts` allows. |
| 128 + signal | A signal stopped the job: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP. The ranks have finished their step and saved. A second signal ends the ranks at once, with the same kind of code. |
| 143 | The time limit (`--time-limit`, or Slurm's end time) was near. The ranks have finished their step and saved. |
| another | The exit code of the rank that failed, or 128 + signal if a signal ended it (137: SIGKILL, 139: SIGSEGV). If several ranks failed, a rank that failed by itself counts more than one that was aborted because of it (70). |

`timeout SECONDS troupe launch …` ends with 124 when the time is over, whatever the job's exit code is. `timeout --preserve-status` passes on the
job's exit code.

`troupe launch` prints the failing rank, its host, how it ended, its log and the next command to type. After exit code 75 it prints the command that
goes on. The exit codes of the other verbs are on the page [command line](cli.md).
"""


def enum_lines():
    """(code, cause, exit code as the comment has it) in order."""
    block = re.search(r"enum class ErrorCode[^{]*\{\n(.*?)\n\};", (ROOT / HEADER).read_text(), re.DOTALL)[1]
    block = re.sub(r"\n\s*///< ", " ", block)  # comments of several lines
    codes = []
    for line in block.splitlines():
        if re.fullmatch(r"\s*ok = 0,", line):
            codes.append(("ok", "no failure", ["0"]))
            continue
        entry = re.fullmatch(r"\s*(\w+),\s*///< (.*) \(exit (\d+(?: or \d+)*)\)", line)
        if entry is None:
            raise ValueError(f"{HEADER}: '{line.strip()}' is not `code,  ///< cause (exit N)`")
        codes.append((entry[1], entry[2], entry[3].split(" or ")))
    return codes


def facts():
    """(name in messages, exit code) in the order of the enum."""
    block = re.search(r"constexpr Facts kFacts\[\] = \{(.*?)\n\};", (ROOT / SOURCE).read_text(), re.DOTALL)[1]
    found = re.findall(r'\{"([^"]*)", (\d+)\}', block)
    if re.sub(r'\{"[^"]*", \d+\}|[\s,]', "", block):
        raise ValueError(f"{SOURCE}: kFacts has something that is not {{\"name\", exit code}}")
    return found


def recovered():
    body = re.search(r"bool may_be_recovered\(ErrorCode code\) noexcept \{(.*?)\n\}", (ROOT / SOURCE).read_text(), re.DOTALL)[1]
    if re.search(r"!|switch|&&", body):
        raise ValueError(f"{SOURCE}: docs/site/exit_codes_page.py reads may_be_recovered as a list of `code == ErrorCode::X`")
    return set(re.findall(r"ErrorCode::(\w+)", body))


def page():
    codes, names, again = enum_lines(), facts(), recovered()
    if len(codes) != len(names):
        raise ValueError(f"{HEADER} has {len(codes)} codes, kFacts {len(names)}")
    if stale := set(REMEDIES) - {code for code, _, _ in codes}:
        raise ValueError(f"docs/site/exit_codes_page.py has a remedy for {min(stale)}, which is no code")
    text = INTRODUCTION
    for (code, cause, exits), (name, exit_code) in zip(codes, names):
        if exits[0] != exit_code:
            raise ValueError(f"{code}: the comment says exit {exits[0]}, kFacts {exit_code}")
        text += f"| {' or '.join(exits)} | `{code}` | {name} | {cause} | {'yes' if code in again or code in REPLACED else 'no'} | {REMEDIES.get(code, OTHERWISE)} |\n"
    return text + LAUNCHER
