"""No include points up, and third-party headers stay where they belong: include_arrows.py [ROOT]

    tests, bench, examples -> troupe -> launch -> strategies -> actors -> tensor_io

Prints one line per include that breaks a rule, and exits with 1 if there was one. Before that it judges sources with one sin each, so that
a check that sees nothing cannot pass.
"""
import pathlib
import re
import sys

RANKS = {"tensor_io": 0, "actors": 1, "strategies": 2, "launch": 3, "troupe": 4, "examples": 5, "tests": 5, "bench": 5}

# What is included, who may, and why.
PLACES = [
    (r"caf/(io|openssl)/", r"launch/", "only launch opens connections between actor systems"),
    (r"caf/", r"(?!tensor_io/)", "tensor_io moves tensors and knows no actors"),
    (r"nccl\.h", r"tensor_io/cuda/nccl_library\.", "only the table of NCCL's calls sees NCCL"),
    (r"(cuda|cublas|cupti|c10/cuda/|ATen/cuda/|torch/cuda)|tensor_io/cuda/device_kernels_cuda",
     r"tensor_io/cuda/(cuda_accelerator|cuda_graph|device_kernels_cuda|nccl_library)\.|tests/gpu/\w+\.cu$", "only the files of a build with CUDA see it"),
    (r"gloo/", r"tensor_io/communicator/gloo/|bench/", "only the Gloo communicator sees Gloo"),
    (r"openssl/", r"(tests/)?launch/", "only launch speaks TLS"),
    (r"cereal/", r"launch/(rank/rank\.hpp|launcher/journal\.cpp)|tensor_io/checkpoint/rank_state\.cpp|tests/", "cereal stays in the files that serialise"),
]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


def findings(sources):
    """sources: path -> text. Yields (path, included, why)."""
    for path, text in sources.items():
        folder = path.split("/")[0]
        for included in INCLUDE.findall(text):
            target = included.split("/")[0]
            if "/" in included and target in RANKS and RANKS[target] > RANKS[folder]:
                yield path, included, f"{folder} lies below {target}"
            for what, where, why in PLACES:
                if re.match(what, included):
                    if not re.match(where, path):
                        yield path, included, why
                    break


def read(root):
    for folder in RANKS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".hpp", ".cpp", ".h", ".inc", ".cu", ".cuh"):
                yield file.relative_to(root).as_posix(), file.read_text()


def self_test():
    sins = {
        "tensor_io/a.cpp": '#include "actors/rank/reducer.hpp"\n',
        "actors/b.hpp": '  #  include "strategies/replicated/ddp.hpp"\n',
        "strategies/c.cpp": "#include <launch/rank/rank.hpp>\n",
        "launch/d.cpp": '#include <string>\n#include "tests/catch.hpp"\n',
        "tensor_io/e.cpp": "#include <caf/all.hpp>\n",
        "actors/f.cpp": "#include <caf/io/all.hpp>\n",
        "tensor_io/g.cpp": "#include <nccl.h>\n",
        "tensor_io/communicator/nccl/nccl_communicator.cpp": "#include <nccl.h>\n",
        "strategies/n.cpp": "#include <cuda_runtime_api.h>\n",
        "actors/o.cpp": "#include <c10/cuda/CUDAStream.h>\n",
        "tests/gpu/q.cpp": "#include <cuda_runtime.h>\n",
        "tensor_io/p.cpp": '#include "tensor_io/cuda/device_kernels_cuda.hpp"\n',
        "actors/h.hpp": "#include <cereal/cereal.hpp>\n",
        "strategies/i.cpp": "#include <gloo/context.h>\n",
        "actors/j.cpp": "#include <openssl/ssl.h>\n",
        "launch/k.cpp": '#include "troupe/troupe.hpp"\n',
    }
    virtues = {
        "launch/l.cpp": '#include <caf/io/all.hpp>\n#include "tensor_io/base/error.hpp"\n// #include "tests/catch.hpp"\n',
        "tensor_io/cuda/nccl_library.cpp": "#include <nccl.h>\n",
        "tensor_io/cuda/device_kernels_cuda.cu": '#include <cuda_fp16.h>\n#include "tensor_io/cuda/device_kernels_cuda.hpp"\n',
        "actors/m.cpp": "#include <caf/all.hpp>\n",
        "tests/gpu/r.cu": "#include <cuda_runtime.h>\n",
    }
    found = [path for path, _, _ in findings(sins | virtues)]
    assert found == list(sins), f"the rules should find each of {list(sins)}, and found {found}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    self_test()
    sources = dict(read(root))
    broken = list(findings(sources))
    for path, included, why in broken:
        print(f"{path}: includes {included}, but {why}")
    print(f"{len(sources)} files, {len(broken)} includes that break a rule")
    return 1 if broken or len(sources) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
