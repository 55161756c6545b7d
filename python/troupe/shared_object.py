"""Graphs to machine code, by AOTInductor (PyTorch's documentation, "AOTInductor: Ahead-Of-Time Compilation for Torch.Export-ed Models")."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

import torch
import torch._inductor
import torch._inductor.config
from torch._inductor.cpu_vec_isa import valid_vec_isa_list
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._guards import TracingContext, detect_fake_mode, tracing

from .refusal import Refusal

# As /proc/cpuinfo has them, for what the compiler names differently.
FLAG_NAMES = {"sse3": "pni", "bmi": "bmi1", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "sha": "sha_ni",
              "avx512fp16": "avx512_fp16", "avxvnni": "avx_vnni", "lzcnt": "abm", "amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16"}
FLAGS = {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "avx512f", "avx512cd",
         "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16"}


def compiler():
    """The C++ compiler that Inductor calls."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    try:
        name = get_cpp_compiler()
    except Exception:  # it throws several types
        name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise Refusal(f"there is no C++ compiler {name}; install g++ (Debian: apt-get install g++), or name one in CXX")
    return name


def instruction_set():
    """The processor's extensions that the code needs, in the words of /proc/cpuinfo: all that -march=native turns on here."""
    text = subprocess.run([compiler(), "-march=native", "-E", "-v", "-x", "c++", "/dev/null"], capture_output=True, text=True).stderr
    on = {flag for flag in re.findall(r"-m([a-z0-9.\-]+)", text) if flag in FLAGS}
    if not on:  # clang says it as -target-feature +avx2
        on = {flag for flag in re.findall(r'"?\+([a-z0-9.\-]+)"?', text) if flag in FLAGS}
    return sorted(FLAG_NAMES.get(flag, flag) for flag in on)


def work_folder(beside):
    """A folder for files that are compiled and tried: a temporary one, or one in `beside` where nothing may be executed among temporary files."""
    def executes(folder):
        return not os.statvfs(folder).f_flag & os.ST_NOEXEC

    places = [pathlib.Path(tempfile.gettempdir()), pathlib.Path(beside).resolve()]
    place = next((p for p in places if executes(p)), None)
    if place is None:
        raise Refusal(f"programs cannot be run in {places[0]} or {places[1]} (mounted noexec); set TMPDIR to another folder")
    folder = tempfile.TemporaryDirectory(prefix="troupe-compile-" if place == places[0] else ".troupe-compile-", dir=place)
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not executes(cache if cache and os.path.isdir(cache) else places[0]):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(pathlib.Path(folder.name) / "cache")
    return folder


def compile_graph(module, inputs, folder, vectors):
    """The path of a shared object below `folder`. `vectors`: it may use vector instructions."""
    mode = detect_fake_mode(inputs)
    # Threads: of one alone, parts of the code would have no `omp single`, and be wrong where it runs with more.
    # Sums at indices become calls of ATen. Inductor's kernels for them write beside the tensor (github.com/pytorch/pytorch/issues/191837).
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    options = {"compile_threads": 1, "aot_inductor.package": True, "aot_inductor.link_libtorch": False, "aot_inductor.output_path": str(folder) + "/",
               "cpp.dynamic_threads": True, "cpp.threads": max(2, len(os.sched_getaffinity(0))),
               **({} if vectors else {"cpp.simdlen": 1})}
    with tracing(TracingContext(mode)) if mode else contextlib.nullcontext():
        files = torch._inductor.aot_compile(module, tuple(inputs), options=options)
    files = [pathlib.Path(f) for f in ([files] if isinstance(files, str) else files) if isinstance(f, str)]
    objects = [f for f in files if f.suffix == ".so"]
    for file in files:
        calls = json.loads(file.read_text()).get("nodes") if file.suffix == ".json" else None  # by a Python-like interpreter, which no rank has
        if calls:
            raise Refusal(f"AOTInductor has no C++ call for {', '.join(sorted({call['node']['target'] for call in calls}))}")
    if len(objects) != 1:
        raise Refusal(f"AOTInductor made {len(objects)} shared objects of one graph")
    return objects[0]


class Compiling:
    """Graphs that are compiled, as many at once as there are processors: each in a forked process, which has the graph already."""

    def __init__(self, folder, say):
        self.folder, self.say, self.running, self.objects = folder, say, {}, {}
        self.limit = len(os.sched_getaffinity(0))
        self.trial = threading.Thread(target=valid_vec_isa_list)  # compiles small programs, some seconds; the forks know what it found
        self.trial.start()

    def start(self, name, module, inputs, vectors=True):
        self.trial.join()
        if not valid_vec_isa_list() and "avx2" in instruction_set():
            raise Refusal(f"PyTorch could not try the processor's vector instructions in {cache_dir()}, and code without them is slow; "
                          "check that there is space, and remove that folder")
        if len(self.running) >= self.limit:
            self.wait_for_one()
        sys.stdout.flush()
        sys.stderr.flush()
        place = pathlib.Path(self.folder) / name
        place.mkdir(exist_ok=not vectors)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    text = f"done {compile_graph(module, inputs, place, vectors)}"
                except Refusal as refusal:
                    text = f"refused {refusal}"
                except BaseException:
                    text = f"failed {traceback.format_exc()}"
                (place / "outcome").write_text(text)
                code = 0
            finally:
                os._exit(code)
        self.running[child] = name, module, inputs, vectors

    def wait_for_one(self):
        child, status = os.wait()
        if child not in self.running:
            return
        name, module, inputs, vectors = self.running.pop(child)
        outcome = pathlib.Path(self.folder) / name / "outcome"
        kind, _, text = outcome.read_text().partition(" ") if outcome.exists() else ("failed", "", f"it ended with status {status}")
        if kind == "done":
            self.objects[name] = pathlib.Path(text)
            return
        if kind == "refused":
            raise Refusal(text)
        if "CppCompileError" in text and vectors:  # Inductor's vector code is not always C++
            self.say(f"graph {name.removeprefix('again.')}: the compiler refuses PyTorch's vector code; compiled without vector instructions, it is slow")
            return self.start(name, module, inputs, vectors=False)
        lines = text.strip().splitlines()
        of_compiler = next((line.partition("error: ")[2] for line in lines if " error: " in line), None)
        raise Refusal(f"PyTorch cannot compile a part of the model: {of_compiler or lines[-1]}") from RuntimeError(text)

    def wait(self):
        while self.running:
            self.wait_for_one()

    def stop(self):
        """Ends what still runs."""
        self.trial.join()
        for child in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        self.running = {}
