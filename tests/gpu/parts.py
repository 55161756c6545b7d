"""The parts of ./dev gpu-check: one table. A part is a name, its limit in seconds, and steps; a step is a process.

A step's words are formatted. {test_gpu}, {gpu_rows} and {folder} are what was built. {python} runs this folder's
scripts {steps_test}, {strategies_test}, {step_rows}, {host_rows} and {counters}. {logs} is where output stays. {memory}
is the smallest device's in MiB. {nvidia-smi}, {compute-sanitizer} and {ncu} are tools of the machine: without its tool
a step does not run. A step with a tag stands for the tests of test_gpu that have it, each of them a step.
"""
import dataclasses

MOST_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    words: tuple = ()
    measures: bool = False  # rows of docs/gpu.md's second table
    tag: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    seconds: int
    about: str
    steps: tuple


def tests(tag):
    return Step(f"the list of tests [{tag}]", ("{test_gpu}", "--list-test-names-only", f"[{tag}]"), tag=tag)


def case(name):
    """Of steps_test.py."""
    return Step(name, ("{python}", "{steps_test}", "{folder}", "--device", "cuda", "--case", name))


def rows(group):
    """Of gpu_rows."""
    return Step(f"rows: {group}", ("{gpu_rows}", group), measures=True)


def beside(row):
    """Of step_rows.py."""
    words = ("{python}", "{step_rows}", "{folder}", "--memory", "{memory}", "--row", row)
    return Step(f"beside PyTorch: {row}", words, measures=True)


DDP = "[L03] gpu: ddp trains a transformer and a ResNet to PyTorch's losses"
FSDP = "[L03] gpu: fsdp trains to PyTorch's losses, with offload too"
BF16 = "[L03] gpu: bf16 stays near f32's losses, by autocast and by fsdp's own dtype"
TWO_DDP = "[L03] gpu: two processes of ddp on one device train to one rank's losses"
TWO_FSDP = "[L03] gpu: two processes of fsdp on one device train to one rank's losses"
STUCK = "[L03] gpu: a collective that is stuck ends with an abort, and device and communicators go on"
LONELY = "[L03] gpu: a set-up beside another process that never comes ends at its deadline, and the communicators go on"
ASSERT = "[L03] gpu: a process whose kernel fails ends with 70"

# In the order in which they are worth a lent machine's minutes.
PARTS = (
    Part("machine", 10, "driver, devices, versions", (
        Step("nvidia-smi", ("{nvidia-smi}",)), Step("versions", ("{gpu_rows}", "versions")))),
    Part("kernels", 30, "our kernels, then one test under compute-sanitizer", (
        tests("kernels"),
        Step("compute-sanitizer", ("{compute-sanitizer}", "--error-exitcode", "1", "{test_gpu}", "[sanitized]")))),
    Part("nccl", 40, "NCCL's conformance, a lonely set-up, 20 communicators", (tests("nccl"),)),
    Part("ddp", 30, "ddp's losses, graphs to the bit, graphs with paced collectives", (case(DDP), tests("ddp"))),
    Part("sharded", 30, "fsdp, offload, activation checkpointing", (case(FSDP), tests("sharded"))),
    Part("two_ranks", 60, "two processes on one device", (case(TWO_DDP), case(STUCK), case(TWO_FSDP), case(LONELY))),
    Part("strategies", 60, "each strategy started by troupe launch, two to four processes on one device", (
        Step("every strategy", ("{python}", "{strategies_test}", "{folder}")),)),
    Part("faults", 20, "a kernel that fails, a bucket beside a full cache", (case(ASSERT), tests("faults"))),
    Part("rows", 40, "rows of our own, memory throughput by ncu", (
        rows("kernels"), rows("optimizer"), rows("ddp"), rows("abort"),
        Step("memory throughput", ("{python}", "{counters}", "{ncu}", "{gpu_rows}"), measures=True))),
    Part("gpt124m", 60, "GPT-124M beside PyTorch's DDP", (beside("step of ddp, gpt124m"),)),
    Part("gpt124m_graphs", 60, "the same with CUDA graphs", (beside("step of ddp with cuda_graphs, gpt124m"),)),
    Part("fsdp2", 60, "GPT-124M beside PyTorch's FSDP2", (beside("step of fsdp, gpt124m"),)),
    Part("host", 60, "where the host's time goes in a step, launches, late votes", (
        Step("host", ("{python}", "{host_rows}", "{folder}", "--keep", "{logs}"), measures=True),)),
    Part("overlap", 60, "exposed communication at 370 GB/s and at half a step", (rows("overlap"),)),
    Part("resnet50", 60, "ResNet-50 beside PyTorch's DDP", (beside("step of ddp, resnet50"),)),
    Part("resnet50_graphs", 60, "the same with CUDA graphs", (beside("step of ddp with cuda_graphs, resnet50"),)),
    Part("more", 60, "bf16, SyncBatchNorm, 100 communicators", (case(BF16), tests("more"))),
)
NAMES = tuple(part.name for part in PARTS)
