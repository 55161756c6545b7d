"""Includes follow the architecture: include_arrows.py [--table] [ROOT]

    tests, bench, examples -> troupe -> launch -> strategies -> actors -> tensor_io

No include points up, examples include troupe/ alone, which brings none of the inner headers along, no folders include each other in a circle, third-party headers stay where they belong, and no folder has more than 45
files. Prints one line per break of a rule, and exits with 1 if there was one. Before that it judges sources with one sin each, so that a
check that sees nothing cannot pass. --table prints every folder with its files and lines instead.
"""
import pathlib
import re
import sys

RANKS = {"tensor_io": 0, "actors": 1, "strategies": 2, "launch": 3, "troupe": 4, "examples": 5, "tests": 5, "bench": 5}

MAX_FILES = 45  # of a folder, beside those in its sub-folders

# What is included, who may, and why.
PLACES = [
    (r"caf/(io|openssl)/", r"launch/network/", "only launch/network opens connections between actor systems"),
    (r"caf/", r"(?!tensor_io/)", "tensor_io moves tensors and knows no actors"),
    (r"nccl\.h", r"tensor_io/cuda/nccl_library\.", "only the table of NCCL's calls sees NCCL"),
    (r"nvtx3/", r"tensor_io/cuda/nvtx_ranges\.", "spans become NVTX's ranges in one file"),
    (r"(cuda|cublas|cupti|c10/cuda/|ATen/cuda/|torch/cuda)|tensor_io/cuda/device_kernels_cuda",
     r"tensor_io/cuda/(cuda_accelerator|cuda_graph|device_kernels_cuda|nccl_library)\.|tests/gpu/\w+\.cu$", "only the files of a build with CUDA see it"),
    (r"gloo/", r"tensor_io/communicator/gloo/|bench/", "only the Gloo communicator sees Gloo"),
    (r"openssl/", r"(tests/)?launch/network/", "only launch/network speaks TLS"),
    (r"valgrind/", r"tests/costs/", "a package of ./dev test, without which ./dev build leaves tests/costs out"),
    (r"cereal/", r"launch/(loop/(rank|own_state_access)\.hpp|launcher/journal\.cpp)|tensor_io/checkpoint/rank_state\.cpp|tests/", "cereal stays in the files that serialise"),
]

# What a program does not see: headers that those in troupe/ bring along match none of it.
INNER = re.compile(r"actors/(compute|coordinator|simulator)/|launch/(?!config/|program/|loop/|model/|testing/|compiled/compiled_model\.hpp)"
                   r"|launch/loop/(?!(rank|batch_stream|callbacks|own_state_access|uneven_batches|step_profile)\.hpp)|launch/program/(?!(job|job_of|strategy_conformance)\.hpp)"
                   r"|launch/model/(?!(load_weights|parameter_rules)\.hpp)|launch/testing/(?!(actor_alone|cluster|cluster_fault|thread_schedule)\.hpp)")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


def folder_of(path):
    return path.rpartition("/")[0]


def arrows(sources):
    """folder -> {folder that it includes: (path, included)}"""
    found = {}
    for path, text in sources.items():
        for included in INCLUDE.findall(text):
            beside = f"{folder_of(path)}/{included}"
            target = folder_of(included if included in sources else beside if beside in sources else path)
            if target != folder_of(path):
                found.setdefault(folder_of(path), {}).setdefault(target, (path, included))
    return found


def circles(sources):
    """Lists of folders of which each includes the next, and the last the first: one for each folder that closes a circle."""
    graph, done, found = arrows(sources), set(), []

    def visit(folder, way):
        if folder in way:
            found.append(way[way.index(folder):])
        elif folder not in done:
            for target in sorted(graph.get(folder, {})):
                visit(target, [*way, folder])
            done.add(folder)

    for folder in sorted(graph):
        visit(folder, [])
    return [(circle, [graph[a][b] for a, b in zip(circle, circle[1:] + circle[:1])]) for circle in found]


def inner_headers(sources):
    """Chains of includes from a header in troupe/ to one that a program is not to see: the shortest for each."""
    chains = {path: [path] for path in sources if path.startswith("troupe/")}
    todo = list(chains)
    for path in todo:
        if INNER.match(path):
            yield chains[path]
            continue
        for included in INCLUDE.findall(sources[path]):
            if included in sources and included not in chains:
                chains[included] = [*chains[path], included]
                todo.append(included)


def files_by_folder(names):
    found = {}
    for name in names:
        found.setdefault(folder_of(name), []).append(name)
    return found


def findings(sources):
    """sources: path -> text. Yields (path, what is wrong)."""
    for path, text in sources.items():
        folder = path.split("/")[0]
        for included in INCLUDE.findall(text):
            target = included.split("/")[0]
            if "/" in included and target in RANKS and RANKS[target] > RANKS[folder]:
                yield path, f"includes {included}, but {folder} lies below {target}"
            if folder == "examples" and "/" in included and target in RANKS and target not in ("examples", "troupe"):
                yield path, f"includes {included}, but a program includes <troupe/...> alone"
            for what, where, why in PLACES:
                if re.match(what, included):
                    if not re.match(where, path):
                        yield path, f"includes {included}, but {why}"
                    break
    for chain in inner_headers(sources):
        yield chain[0], "programs would see an inner header: " + " includes ".join(chain)
    for circle, includes in circles(sources):
        yield includes[0][0], "folders in a circle: " + "; ".join(f"{path} includes {included}" for path, included in includes)


def crowded(names):
    for folder, files in files_by_folder(names).items():
        if len(files) > MAX_FILES:
            yield folder, f"has {len(files)} files; {MAX_FILES} are the most: make sub-folders"


def read(root):
    """(names of all files, path -> text of the sources)"""
    names, sources = [], {}
    for folder in RANKS:
        for file in sorted((root / folder).rglob("*")):
            name = file.relative_to(root).as_posix()
            if file.is_file() and "__pycache__" not in name:
                names.append(name)
                if file.suffix in (".hpp", ".cpp", ".h", ".inc", ".cu", ".cuh"):
                    sources[name] = file.read_text()
    return names, sources


def self_test():
    sins = {
        "tensor_io/a.cpp": '#include "actors/rank/reducer.hpp"\n',
        "actors/b.hpp": '  #  include "strategies/replicated/ddp.hpp"\n',
        "strategies/c.cpp": "#include <launch/loop/rank.hpp>\n",
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
        "launch/loop/s.cpp": "#include <openssl/ssl.h>\n",
        "launch/t.cpp": "#include <caf/io/all.hpp>\n",
        "launch/k.cpp": '#include "troupe/troupe.hpp"\n',
        "examples/x/main.cpp": '#include <troupe/troupe.hpp>\n#include "tensor_io/data/datasets.hpp"\n',
        "troupe/u.hpp": '#include "actors/v.hpp"\n',
    }
    virtues = {
        "launch/network/l.cpp": '#include <caf/io/all.hpp>\n#include "tensor_io/base/error.hpp"\n// #include "tests/catch.hpp"\n',
        "tensor_io/cuda/nccl_library.cpp": "#include <nccl.h>\n",
        "tensor_io/cuda/device_kernels_cuda.cu": '#include <cuda_fp16.h>\n#include "tensor_io/cuda/device_kernels_cuda.hpp"\n',
        "actors/m.cpp": "#include <caf/all.hpp>\n",
        "actors/v.hpp": '#include "actors/compute/w.hpp"\n',
        "actors/compute/w.hpp": "",
        "examples/y/main.cpp": '#include <troupe/data.hpp>\n#include "examples/x/net.hpp"\n',
        "tests/gpu/r.cu": "#include <cuda_runtime.h>\n",
    }
    found = [path for path, _ in findings(sins | virtues)]
    assert found == list(sins), f"the rules should find each of {list(sins)}, and found {found}"
    triangle = {
        "actors/a/x.hpp": "",
        "actors/a/y.cpp": '#include "actors/b/x.hpp"\n',
        "actors/b/x.hpp": '#include "actors/c/x.hpp"\n',
        "actors/c/x.hpp": "",
        "actors/c/y.cpp": '#include "actors/a/x.hpp"\n',
    }
    assert [sorted(circle) for circle, _ in circles(triangle)] == [["actors/a", "actors/b", "actors/c"]], circles(triangle)
    assert len(list(findings(triangle))) == 1
    del triangle["actors/c/y.cpp"]
    assert circles(triangle) == []
    names = [f"launch/{i}.cpp" for i in range(MAX_FILES)] + ["launch/loop/x.cpp"]
    assert list(crowded(names)) == [] and [folder for folder, _ in crowded([*names, "launch/y.hpp"])] == ["launch"]


def print_table(names, root):
    print("| folder | files | lines |\n|---|---|---|")
    for folder, files in sorted(files_by_folder(names).items()):
        print(f"| {folder} | {len(files)} | {sum((root / name).read_bytes().count(10) for name in files)} |")


def main():
    words = sys.argv[1:]
    table = "--table" in words
    words = [word for word in words if word != "--table"]
    root = pathlib.Path(words[0] if words else pathlib.Path(__file__).parents[2])
    self_test()
    names, sources = read(root)
    if table:
        return print_table(names, root)
    broken = [*findings(sources), *crowded(names)]
    for path, wrong in broken:
        print(f"{path}: {wrong}")
    print(f"{len(sources)} sources in {len(files_by_folder(names))} folders, {len(broken)} breaks of a rule")
    return 1 if broken or len(sources) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
