"""docs/reference/public_api.md: the classes and functions that <troupe/...> brings, with the first sentence of each comment. Doxygen reads the
headers. A symbol without a comment is an error, and so is a header that is neither listed here nor a subject's own."""
import pathlib
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]

# By subject: its header in troupe/, and headers that this one brings without naming them. A header belongs to the first subject that has it.
SUBJECTS = {
    "Training": ("train.hpp", [
        "actors/rank/strategy_options.hpp", "actors/step/correct_samples.hpp", "actors/step/step_report.hpp", "actors/step/training_options.hpp",
        "launch/loop/batch_stream.hpp", "launch/loop/callbacks.hpp", "launch/loop/uneven_batches.hpp", "tensor_io/base/random_seed.hpp",
        "tensor_io/communicator/choice/communicator_settings.hpp", "tensor_io/data/data_options.hpp", "tensor_io/optimizer/optimizer_options.hpp",
        "tensor_io/optimizer/schedule.hpp"]),
    "Data": ("data.hpp", ["tensor_io/layout/named_tensors.hpp"]),
    "Layers": ("layers.hpp", ["tensor_io/layers/tensor_parallel.hpp"]),
    "Optimizers": ("optimizers.hpp", []),
    "Strategies": ("strategies.hpp", [
        "actors/rank/comm_hook.hpp", "actors/strategy/capabilities.hpp", "actors/strategy/device_memory.hpp", "actors/strategy/graph_capture.hpp",
        "actors/strategy/handover.hpp", "actors/strategy/late_voting.hpp", "actors/strategy/saved_state.hpp",
        "actors/strategy/strategy_context.hpp"]),
    "Communicators": ("communicators.hpp", ["tensor_io/communicator/rendezvous.hpp"]),
    "Checkpoints": ("checkpoints.hpp", ["tensor_io/checkpoint/checkpoint_store.hpp", "tensor_io/layout/named_state.hpp"]),
    "Compiled models": ("compiled.hpp", []),
    "Testing": ("testing.hpp", ["launch/testing/cluster_fault.hpp"]),
}
# What public headers include for themselves: a program does not name what is in there.
INNER = {
    "actors/block/block_calls.hpp", "actors/rank/data_cursor.hpp", "actors/rank/reducer.hpp", "actors/rank/thread_actor.hpp", "actors/step/time_sums.hpp",
    "launch/loop/own_state_access.hpp", "strategies/replicated/gradient_buckets.hpp", "strategies/replicated/model_sync.hpp",
    "tensor_io/base/held_value.hpp", "tensor_io/base/registry.hpp", "tensor_io/base/span_ranges.hpp", "tensor_io/base/steady_time.hpp",
    "tensor_io/checkpoint/manifest.hpp",
    "tensor_io/communicator/collective_ledger.hpp", "tensor_io/data/token_shard.hpp", "tensor_io/device/dropout_key.hpp",
    "tensor_io/device/timed_mark.hpp", "tensor_io/kernels/update_kernels.hpp", "tensor_io/layers/module_code.hpp",
    "tensor_io/optimizer/reduced_update.hpp",
}
# What a public header needs for its own templates and macros.
INNER_NAMES = {"BlockArgument", "End", "Iterator", "BlockHolder", "BlockOf", "ForwardOf", "ModuleBody", "ModuleOf", "TROUPE_TEXT_OF", "TROUPE_WHERE"}
INNER_NAMESPACES = ("internal", "detail")
INCLUDE = re.compile(r'^#include "([\w/]+\.hpp)"', re.M)
KINDS = {"class": "class", "struct": "struct", "function": "function", "typedef": "type", "enum": "enum", "variable": "constant", "define": "macro"}

INTRODUCTION = """# Public API

Generated from the comments of the public headers; `python3 tests/docs/reference.py --write` writes it anew.

A program includes `<troupe/troupe.hpp>`, or the header of one subject. A test includes `<troupe/testing.hpp>`. All names are in the namespace
`troupe`. Each line has the first sentence of the comment; the header has the rest. The [API reference](../api_reference.md) lists the same headers
with their members and arguments.
"""


def includes(path):
    return INCLUDE.findall((ROOT / path).read_text())


def headers():
    """Each subject's headers, in order."""
    listed, found, of = set(), {}, set()
    for subject, (own, more) in SUBJECTS.items():
        direct = [path for path in includes(f"troupe/{own}") if not path.startswith("troupe/")]
        found[subject] = [path for path in [f"troupe/{own}", *direct, *more] if path not in listed]
        listed |= set(found[subject])
        of |= {inner for path in direct for inner in includes(path)}
    missing = {path.name for path in (ROOT / "troupe").glob("*.hpp")} - {own for own, _ in SUBJECTS.values()} - {"troupe.hpp"}
    if missing:
        raise ValueError(f"docs/site/public_api_page.py: no subject has troupe/{min(missing)}")
    for path in sorted(of - listed - INNER):
        raise ValueError(f"docs/site/public_api_page.py: a public header includes {path}: is it of a subject, or INNER?")
    for path in sorted((listed | INNER) - of - {path for paths in found.values() for path in paths}):
        raise ValueError(f"docs/site/public_api_page.py: no public header includes {path}")
    return found


def doxygen(paths, folder):
    settings = (ROOT / "docs/site/Doxyfile").read_text() + f"""
OUTPUT_DIRECTORY = {folder}
STRIP_FROM_PATH = {ROOT}
INPUT = {' '.join(str(ROOT / path) for path in paths)}
GENERATE_HTML = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
WARNINGS = NO
WARN_AS_ERROR = NO
"""
    subprocess.run(["doxygen", "-"], input=settings, text=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [ElementTree.parse(file).getroot() for file in sorted(pathlib.Path(folder, "xml").glob("*.xml"))]


def text_of(element):
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip() if element is not None else ""


def markdown_of(element):
    """As text_of, with code in backticks; doxygen makes dashes of two hyphens."""
    if element is None:
        return ""
    text = element.text or ""
    for child in element:
        inner = {"ndash": "--", "mdash": "---"}.get(child.tag) or markdown_of(child)
        text += (f"`{inner}`" if child.tag == "computeroutput" else inner) + (child.tail or "")
    return re.sub(r"\s+", " ", text)


def first_sentence(element):
    text = markdown_of(element.find("briefdescription")).strip()
    text = text or re.split(r"(?<=[.!?])\s", markdown_of(element.find("detaileddescription/para")).strip())[0]
    text = "".join(part if code else re.sub(r"([*<\[])", r"\\\1", part) for code, part in in_parts(text.rstrip(":; ").replace("|", r"\|")))
    if re.match(r"[a-z]+ (?![(-])", text):  # a sentence, and no name of something
        text = text[0].upper() + text[1:]
    return text + ("" if text.endswith((".", "!", "?")) else ".") if text else ""


def in_parts(text):
    """(is code, text), in order."""
    return [(part.startswith("`"), part) for part in re.split(r"(`[^`]*`)", text)]


def is_listed(member):
    name, arguments = text_of(member.find("name")), text_of(member.find("argsstring"))
    return not (member.get("prot") != "public" or name.startswith(("~", "operator")) or "=delete" in arguments.replace(" ", "") or
                name == "TORCH_MODULE" or " override" in arguments or member.find("reimplements") is not None)


class Symbols:
    """(header, line, scope, name) -> kind and comment; overloads are one."""

    def __init__(self):
        self.found = {}
        self.modules = set()  # names of TORCH_MODULE

    def add(self, element, kind, scope, name):
        place = element.find("location")
        path = place.get("file")
        if any(part in INNER_NAMESPACES for part in scope) or {*scope, name} & INNER_NAMES:
            return
        key = (path, *scope, name)
        line, _, comment = self.found.get(key, (int(place.get("line")), kind, ""))
        self.found[key] = (min(line, int(place.get("line"))), kind, comment or first_sentence(element))

    def read(self, compound):
        kind, full = compound.get("kind"), text_of(compound.find("compoundname"))
        if kind not in ("class", "struct", "namespace", "file") or "<" in full or compound.get("prot") not in (None, "public"):
            return
        scope = [part for part in full.split("::") if part != "troupe"] if kind != "file" else []
        if kind in ("class", "struct"):
            self.add(compound, KINDS[kind], scope[:-1], scope[-1])
        for member in compound.iter("memberdef"):
            name, of = text_of(member.find("name")), member.get("kind")
            if name == "TORCH_MODULE":
                self.modules.add(text_of(member.find("argsstring")).strip("() ") or text_of(member.find("param/type")))
            if not is_listed(member) or (kind == "file" and of != "define"):
                continue
            if kind in ("class", "struct") and (of != "function" or name == scope[-1]):
                continue
            if of in KINDS:
                self.add(member, KINDS[of], scope, name)

    def shown(self, scope, name):
        """As a program writes it: Linear for LinearImpl."""
        parts = [part[:-4] if part.endswith("Impl") and part[:-4] in self.modules else part for part in [*scope, name]]
        return "::".join(parts)


def read_symbols():
    with tempfile.TemporaryDirectory() as folder:
        roots = doxygen([path for paths in headers().values() for path in paths], folder)
    symbols = Symbols()
    for root in roots:
        for compound in root.iter("compounddef"):
            symbols.read(compound)
    return symbols


def page():
    symbols = read_symbols()
    bare = [f"{path}:{line}: {'::'.join(names)} has no comment" for (path, *names), (line, _, comment) in sorted(symbols.found.items()) if not comment]
    if bare:
        raise ValueError("\n".join(bare))
    text = INTRODUCTION
    for subject, paths in headers().items():
        text += f"\n## {subject}\n\nThe header of this subject is [troupe/{SUBJECTS[subject][0]}](../../troupe/{SUBJECTS[subject][0]}).\n"
        for path in paths:
            rows = sorted((line, names, kind, comment) for (of, *names), (line, kind, comment) in symbols.found.items() if of == path)
            if not rows:
                continue
            text += f"\n### [{path}](../../{path})\n\n| name | kind | comment |\n|---|---|---|\n"
            for _, names, kind, comment in rows:
                text += f"| `{symbols.shown(names[:-1], names[-1])}` | {kind} | {comment} |\n"
    return text
