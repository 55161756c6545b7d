"""How much of the device's memory throughput our kernels reach, by Nsight Compute: counters.py NCU GPU_ROWS"""
import csv
import pathlib
import subprocess
import sys

import step_rows

METRIC = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
LAUNCHES = ("pack of 64 gradients", "pack of one gradient of 154 MB", "norm and finite check")  # of `gpu_rows once`
NOT_ALLOWED = "ERR_NVGPUCTRPERM"


def measured(output):
    """Percents, by launch, of ncu's CSV, which begins after what the program itself prints."""
    lines = output.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    return [float(line["Metric Value"]) for line in csv.DictReader(lines[begin:]) if line["Metric Name"] == METRIC]


def self_test():
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    text = f'==PROF== x\n{head}\n"0","pack_kernel(int)","{METRIC}","%","41.5"\n'
    assert measured(text) == [41.5] and measured("==ERROR== no") == []


def main():
    self_test()
    ncu, gpu_rows = sys.argv[1:]
    command = [ncu, "--csv", "--metrics", METRIC, "--kernel-name", "regex:pack_kernel|check_kernel", gpu_rows, "once"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=step_rows.own_environment(pathlib.Path(gpu_rows).parent))
    if NOT_ALLOWED in done.stdout:
        print("NOT RUN: this user may not read the device's counters")
        return 77
    found = measured(done.stdout)
    if len(found) != len(LAUNCHES):
        print(done.stdout)
        return 77 if "NOT RUN: " in done.stdout else 1
    for name, percent in zip(LAUNCHES, found):
        print(f"| memory throughput of {name}, of the device's peak | {percent:.1f} % | | | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
