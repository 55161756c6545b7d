"""Every header includes what it names: headers_complete.py [ROOT]

It reads, and compiles nothing, so that all headers take a second: names of the standard library, of LibTorch and CAF, and types of ours need
an include that brings them, in the header or in a header of ours that it includes; a type of ours may be declared forward. Functions and
macros are not looked at: `./dev lint` compiles each header alone (headers_alone.py). Prints one line per name that is missing, and exits
with 1 if there was one. Before that it judges headers with one sin each.
"""
import pathlib
import re
import sys

from headers_alone import Tree

# Included by so much of LibTorch and CAF that their headers bring it.
STANDARD = {
    "algorithm": "clamp max_element min_element sort find_if any_of all_of none_of count_if transform",
    "array": "array", "atomic": "atomic atomic_ref memory_order_relaxed", "condition_variable": "condition_variable",
    "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t", "deque": "deque",
    "exception": "exception_ptr current_exception rethrow_exception", "filesystem": "filesystem", "fstream": "ifstream ofstream",
    "functional": "function", "future": "future promise", "map": "map multimap", "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared",
    "mutex": "mutex scoped_lock unique_lock lock_guard call_once once_flag", "optional": "optional nullopt", "random": "mt19937 random_device",
    "set": "set", "span": "span", "sstream": "ostringstream istringstream stringstream", "stdexcept": "runtime_error invalid_argument logic_error",
    "string": "string to_string", "string_view": "string_view", "thread": "thread", "tuple": "tuple tie", "unordered_map": "unordered_map",
    "variant": "variant", "vector": "vector", "chrono": "chrono",
}
HEADER_OF = {name: header for header, names in STANDARD.items() for name in names.split()}
# Standard headers that promise what others have.
BRINGS = {"map": ["utility"], "filesystem": ["string", "string_view", "chrono"], "sstream": ["string"], "fstream": ["string"],
          "mutex": ["chrono"], "condition_variable": ["mutex", "chrono"], "thread": ["chrono"], "future": ["chrono", "mutex"],
          "stdexcept": ["string", "exception"], "memory": ["exception"]}
LARGE = re.compile(r"^(torch|ATen|c10|caf|catch2|gloo|nlohmann|cereal)/|^asio")
SPACES = {"torch": r"^(torch|ATen/core)/", "at": r"^(torch|ATen|c10)/", "c10": r"^(torch|ATen|c10)/", "caf": r"^caf/"}
DECLARED = re.compile(r"^(?:template <[^>]*>\s*)?(?:class|struct|enum class|using) (\w+)(?: final)?(?::| :|\s*\{| =|$)", re.M)
FORWARD = re.compile(r"^(?:class|struct|enum class) (\w+)(?: : [\w:]+)?;", re.M)
COMMENT = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"')


def findings(texts):
    """texts: path -> text. Yields a line per name that a header does not bring."""
    tree = Tree.of(texts)
    code = {path: COMMENT.sub(" ", text) for path, text in texts.items()}
    home, twice = {}, set()
    for path, text in code.items():
        for name in set(DECLARED.findall(text)):
            if home.setdefault(name, path) != path:
                twice.add(name)
    for path, text in code.items():
        ours, others = tree.closure(path)
        standard = {name for other in others for name in [other, *BRINGS.get(other, [])]}
        if not any(LARGE.search(other) for other in others):
            for name in sorted(set(re.findall(r"\bstd::(\w+)", text))):
                if name in HEADER_OF and HEADER_OF[name] not in standard:
                    yield f"{path}: std::{name} needs <{HEADER_OF[name]}>"
        for space, wanted in SPACES.items():
            if re.search(rf"(?<![\w:] )(?<![\w:]){space}::", text) and f"namespace {space}" not in text and not any(re.search(wanted, other) for other in others):
                yield f"{path}: {space}:: needs an include of it"
        forward = {name for header in ours for name in FORWARD.findall(code[header])}
        own = set(re.findall(r"\b(?:class|struct|enum class|using|typename)(?:\.\.\.)? (\w+)", text))
        for name in sorted(set(re.findall(r"(?<![\w.>])(?<!::)[A-Z]\w+", text)) - own - forward - twice):
            if name in home and home[name] not in ours:
                yield f"{path}: {name} needs \"{home[name]}\""


def self_test():
    good = {"a/x.hpp": "#pragma once\n#include <vector>\nclass Thing {\n};\n",
            "a/y.hpp": '#pragma once\n#include "a/x.hpp"\nstd::vector<Thing> things();\n',
            "a/z.hpp": "#pragma once\n#include <ATen/core/Tensor.h>\nclass Thing;\nat::Tensor of(const Thing&, std::string);  // std::map Other\n"}
    assert list(findings(good)) == [], list(findings(good))
    sins = {"std::vector": good | {"a/y.hpp": "#pragma once\nstd::vector<int> numbers();\n"},
            "Thing": good | {"a/y.hpp": "#pragma once\n#include <vector>\nstd::vector<Thing> things();\n"},
            "at::": good | {"a/y.hpp": "#pragma once\nat::Tensor one();\n"}}
    for name, texts in sins.items():
        found = list(findings(texts))
        assert len(found) == 1 and name in found[0], (name, found)


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    tree = Tree(root)
    found = list(findings(tree.texts))
    found += [f"{path}: its first line is not #pragma once" for path, text in tree.texts.items() if not text.startswith("#pragma once\n")]
    for line in found:
        print(line)
    print(f"{len(tree.texts)} headers, {len(found)} complaints")
    return 1 if found or not tree.texts else 0


if __name__ == "__main__":
    sys.exit(main())
