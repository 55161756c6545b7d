"""Small changes of meaning that the sources allow. They are read as clang-format leaves them: `a < b` compares, `vector<int>` does not.

Texts, log lines, traces, times and a device's streams stay as they are: no test is to hold them to the letter.
"""
import bisect
import collections
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRAWN = ("strategies/*/*", "actors/*/*", "tensor_io/communicator/**/*", "tensor_io/optimizer/*", "tensor_io/checkpoint/*",
         "tensor_io/data/sampler.*", "tensor_io/data/shard_order.*", "launch/loop/*", "launch/program/train.*", "launch/config/data_order.*")
# What only watches or prints a run; the simulator, which is a test.
LEFT_OUT = re.compile(r"actors/(metrics|simulator)/|/(block_trace|clock_offset|collective_ledger|communicator_errors|console|device_times|"
                      r"ledger_dump|loop_records|loop_trace|rank_list|run_log|step_profile|straggler)\.")
KINDS = ("comparison", "sign", "off by one", "dropped", "swapped", "branch")
FLIPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "+=": "-=", "-=": "+="}

LITERAL = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'')
SILENT = re.compile(LITERAL.pattern + r"|//.*|/\*(?:.|\n)*?\*/|^[ \t]*#(?:.*\\\n)*.*", re.M)
NOT_DRAWN = re.compile(r"\b(?:template\s*<|static_assert|operator|using|typedef|friend|throw|requires|constexpr|enum|alignas|delete)\b[^;{]*|"
                       r"\w<[^<>;(){}]*>+")
# A statement that calls or sets this reports, or keeps the time.
REPORTS = re.compile(r"\b(?:log|say|warn|line|show|\w*printf|fflush|fault_point|notices|reasons?|why|cause|remedy|text|label|what|\w*trace\w*|log_|"
                     r"\w*record_?|\w*ledger\w*|console_?|window_|metrics|tell_notices|tell_end|note_membership|reserve|stragglers|"
                     r"report\.(?:own|actor|operation)|on_device|(?:\w*_)?(?:ms|ns|us|mark|started|began|since)_?|events_)(?!\w)")
# What does something on a device only, and is judged there: ./dev gpu-check.
ON_DEVICE = re.compile(r"^.*\b(?:DeviceStream|DeviceEvent|CurrentStream|own_stream|stream\(\)).*", re.M)
TEXTS = {"to_string", "Error", "ErrorReport", "refuse", "fail", "broken", "require", "describe", "rank_list", "name_ranks", "printable",
         "milliseconds", "seconds", "microseconds", "nanoseconds"}
# Functions that make texts; CAF's inspect names the fields of a message for both ends.
MAKES_TEXT = re.compile(r"\b(?:describe|to_string|summary|explain|say|\w*text|text_of|printable|how|name_of|what|show|inspect|\w*trace\w*)"
                        r"\([^;{}]*\)[^;{}()]*\{")
DECLARED = re.compile(r"(?<![\w:.>])((?:\w+::)*\w+(?:<[^;(){}]*?>)?(?:::\w+)?[&*]*) (\w+)(?= ?[;,)=({\[])")
NUMBER = re.compile(r"(?:std::)?(?:u?int(?:8|16|32|64)_t|size_t|int|unsigned|long|double|float|bool)")
SYMMETRIC = {"min", "max", "swap", "gcd", "equal"}

Mutant = collections.namedtuple("Mutant", "file line kind begin end old new")


class Source:
    """A file: its code, where texts are ~ and comments blank, with its brackets, statements and names."""

    def __init__(self, path):
        self.file, self.text = str(path.relative_to(ROOT)), path.read_text()
        self.code = SILENT.sub(lambda m: re.sub(r"[^\n]", "~" if LITERAL.fullmatch(m[0]) else " ", m[0]), self.text)
        self.lines = [m.start() for m in re.finditer("^", self.text, re.M)]
        self.read_brackets()
        self.banned = [m.span() for of in (NOT_DRAWN, ON_DEVICE) for m in of.finditer(self.code)]
        self.banned += [(m.start(), self.partner[m.end() - 1]) for m in MAKES_TEXT.finditer(self.code)]
        self.reports = {span for span in self.statements if self.only_reports(*span)}  # and what throws
        self.banned += self.reports
        self.types = collections.defaultdict(set)
        for other in path.parent.glob(path.stem + ".?pp"):
            for of, name in DECLARED.findall(SILENT.sub("", other.read_text())):
                of = of.rstrip("&")
                self.types[name].add("number" if NUMBER.fullmatch(of) else of)

    def read_brackets(self):
        self.partner, self.bodies, self.statements = {}, set(), []
        self.inside = [(0, None)]  # from here on, the innermost bracket that is open
        stack = []  # [kind, where it opens, where its statement begins]
        for found in re.finditer(r"[()\[\]{};]", self.code):
            i, c = found.start(), found.group()
            if c in "([{":
                kind = self.kind_of_brace(i, stack) if c == "{" else c
                if kind == "body":
                    self.bodies.add(i)
                stack.append([kind, i, i + 1])
            elif c in ")]}":
                kind, opened, _ = stack.pop()
                self.partner[opened], self.partner[i] = i, opened
                if kind == "body" and stack and stack[-1][0] == "body" and not re.match(r"\s*[;),(.]", self.code[i + 1:i + 80]):
                    stack[-1][2] = i + 1
            elif stack and stack[-1][0] == "body":
                self.add_statement(stack[-1][2], i)
                stack[-1][2] = i + 1
            self.inside.append((i + 1, stack[-1][1] if stack else None))

    def kind_of_brace(self, i, stack):
        before = self.code[max(0, i - 400):i].rstrip()
        if re.search(r"\b(namespace|class|struct|union|enum)\b[^()=;{}]*$", before):
            return "type"
        if re.search(r"(?:[)\]]|\b(?:const|override|final|noexcept|else|do|try|mutable)|-> [\w:<>&*, ]+)$", before):
            return "body"
        return "body" if before[-1:] in tuple(";{}:") and (not stack or stack[-1][0] in ("body", "type")) else "init"

    def add_statement(self, begin, end):
        """Without what leads to it: `if (..)`, `else`, `case x:`."""
        while True:
            begin += re.match(r"\s*", self.code[begin:end]).end()
            lead = re.match(r"(?:if|for|while|switch)(?: constexpr)? \(|(?:else|do|try)\b|case (?:[^:;]|::)+:(?!:)|default:", self.code[begin:end])
            if not lead:
                break
            begin += lead.end()
            if lead[0].endswith("("):
                begin = self.partner[begin - 1] + 1
        if begin < end:
            self.statements.append((begin, end))

    def shallow(self, begin, end):
        """The code without what is in brackets."""
        text, i = "", begin
        while i < end:
            text += self.code[i]
            i = self.partner[i] if self.code[i] in "([{" else i + 1
        return text

    def only_reports(self, begin, end):
        whole = self.code[begin:end]
        sets = re.split(r" [-+]?= ", self.shallow(begin, end))[0]
        return whole.startswith("throw") or REPORTS.search(sets) or ("{" not in whole and re.search(r"_ns\b|steady_now", whole))

    def bracket_of(self, i):
        return self.inside[bisect.bisect_right(self.inside, i, key=lambda place: place[0]) - 1][1]

    def in_body(self, i):
        while (i := self.bracket_of(i)) is not None:
            if i in self.bodies:
                return True
        return False

    def piece(self, i):
        """The part between commas, semicolons and brackets that `i` is in."""
        begin = end = i
        while begin > 0 and self.code[begin - 1] not in "([{,;" and not (self.code[begin - 1] == "}" and self.partner[begin - 1] in self.bodies):
            begin = self.partner[begin - 1] if self.code[begin - 1] in ")]}" else begin - 1
        while end < len(self.code) and self.code[end] not in ")]},;" and end not in self.bodies:
            end = self.partner[end] + 1 if self.code[end] in "([{" else end + 1
        return begin, end

    def computes(self, i):
        """Whether what stands there is more than a part of a text, a time or a declaration."""
        if any(begin <= i < end for begin, end in self.banned):
            return False
        while True:
            if "~" in re.sub(r"[=!]= ~+", "", self.shallow(*self.piece(i))):
                return False
            i = self.bracket_of(i)
            if i is None or i in self.bodies:
                return True
            names = re.search(r"(?:(\w+) )?(\w*)(?:<[^<>]*>)?$", self.code[max(0, i - 80):i])
            if TEXTS & set(names.groups()):
                return False

    def change(self, kind, begin, end, new):
        """With its surroundings on the line, so that a reader knows which `<` is meant."""
        left, right = begin, end
        if new:
            row = self.text.rfind("\n", 0, begin) + 1
            left = max(row + re.match(r" *", self.text[row:]).end(), begin - 30)
            right = min(self.text.find("\n", end), end + 30)
            while re.match(r"\w\w", self.text[left - 1:left + 1]):
                left -= 1
            while re.match(r"\w\w", self.text[right - 1:right + 1]):
                right += 1
        line = bisect.bisect_right(self.lines, begin)
        return Mutant(self.file, line, kind, left, right, self.text[left:right], self.text[left:begin] + new + self.text[end:right])

    # ---------------------------------------------------------------- what can be changed

    def comparison(self):
        for found in re.finditer(r"(?<=[\w)\]~] )(?:[<>=!]=|[<>])(?=\s)", self.code):
            if self.computes(found.start()):
                yield found.span(), FLIPPED[found.group()]

    def sign(self):
        for found in re.finditer(r"(?<=[\w)\]~] )[-+]=?(?=\s)", self.code):
            begin, end = self.piece(found.start())
            names = set(re.findall(r"\w+", self.shallow(begin, end)))
            text = "~" in self.code[begin:end] or names & {"now", *TEXTS} or any("string" in of for name in names for of in self.types[name])
            if self.computes(found.start()) and not text:
                yield found.span(), FLIPPED[found.group()]

    def off_by_one(self):
        found = [*re.finditer(r"(?<![\w.])(?:[(\[{,?:] ?|[-+=] |[=!<>]= | [<>] |return )([0-4])(?=[;,)\]}]| [-+<>=!&|?:])", self.code),
                 *re.finditer(r"(?<=[\w)\]])\[([a-z]\w*)\]", self.code),
                 *re.finditer(r"(?<!\w \w)[(, ]((?:\w+(?:\.|->))+size\(\))(?=[,)])", self.code)]
        for match in found:
            bracket = self.bracket_of(match.start(1)) or 0
            named = self.types[match[1]] | self.types[re.search(r"\w*$", self.code[max(0, bracket - 80):bracket])[0]]
            if self.computes(match.start(1)) and self.in_body(match.start(1)) and not re.search(r"string|vector.*size\(\)", f"{named}{match[1]}"):
                yield match.span(1), str(int(match[1]) + 1) if match[1].isdigit() else match[1] + " + 1"

    def dropped(self):
        for begin, end in self.statements:
            if (begin, end) not in self.reports and end - begin < 200 and self.is_call_or_assignment(begin, end):
                if not any(a <= begin < b for a, b in self.banned):
                    yield (begin, end), ""

    def is_call_or_assignment(self, begin, end):
        i = begin + re.match(r"(?:\*|\+\+|--)?", self.code[begin:end]).end()
        if re.match(r"(?:return|break|continue|throw|delete|using|co_\w+|goto|constexpr)\b", self.code[i:end]):
            return False
        while i < end and (part := re.match(r"\w+(?:<[^;(){}]*>(?=\())?|\.|->|::|[(\[]", self.code[i:end])):
            i = self.partner[i] + 1 if part[0] in "([" else i + part.end()
        return (i == end and self.code[i - 1] == ")") or re.match(r" (?:[-+*/|&^%]|<<|>>)?=\s|\+\+|--", self.code[i:end]) is not None

    def swapped(self):
        for found in re.finditer(r"(\w+)(?:<[^<>(){};]*>)?\(", self.code):
            begin, end = found.end(), self.partner[found.end() - 1]
            if found[1] in SYMMETRIC or not self.in_body(found.start()) or not self.computes(begin):
                continue
            parts = []
            while begin < end:
                parts.append(self.piece(begin))
                begin = parts[-1][1] + 1
            parts = [(a + len(self.code[a:b]) - len(self.code[a:b].lstrip()), b) for a, b in parts]
            for k, (a, b) in enumerate(parts):
                for c, d in parts[k + 1:]:
                    one, other = self.text[a:b], self.text[c:d]
                    if one != other and self.type_of(one) & self.type_of(other) and "//" not in self.text[a:d]:
                        yield (a, d), other + self.text[b:c] + one

    def type_of(self, argument):
        """The types that it may have, by the names that this file and its header declare."""
        if re.fullmatch(r"[\d.]+|static_cast<[^<>]*(?:int\w*|size_t|double|float)>\(.*\)|[\w.>-]+\b(?:size|numel|nbytes|dim)\([^()]*\)", argument):
            return {"number"}
        first = re.fullmatch(r"(?:\w+(?:\.|->))*(\w+)(?:\(\))?(?: [-+*/%] .*)?", argument)
        return self.types[first[1]] - {"auto", "const", "return", "new", "else", "case", "void"} if first else set()

    def branch(self):
        for found in re.finditer(r"\bif \(", self.code):
            begin, end = found.end(), self.partner[found.end() - 1]
            if ";" in self.shallow(begin, end):  # after what the condition declares
                begin = self.code.rindex(";", begin, end) + 1
            begin += len(self.code[begin:end]) - len(self.code[begin:end].lstrip())
            if re.search(r"(?<![=!<>]) = ", self.shallow(begin, end)) or not self.computes(begin):
                continue
            after = end + 1 + re.match(r"\s*", self.code[end + 1:]).end()
            close = self.partner[after] if self.code[after] == "{" else None
            inner = [span for span in self.statements if after <= span[0] and (span[1] < close if close else span[0] == after)]
            throws = [span for span in inner if re.match(r"throw|refuse|fail|broken", self.code[span[0]:span[1]])]
            if inner and all(span in self.reports and span not in throws for span in inner):
                continue
            condition = self.text[begin:end]
            yield (begin, end), f"false && ({condition})"
            if not throws:
                yield (begin, end), f"true || ({condition})"


def places():
    """By folder and kind, all mutants of the sources."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in [path for pattern in DRAWN for path in sorted(ROOT.glob(pattern))]:
        name = str(path.relative_to(ROOT))
        if path.suffix not in (".cpp", ".hpp") or LEFT_OUT.search(name):
            continue
        source = Source(path)
        folder = "launch" if name.startswith("launch/") else "/".join(name.split("/")[:2])
        for kind in KINDS:
            for (begin, end), new in getattr(source, kind.replace(" ", "_"))():
                found[folder][kind].append(source.change(kind, begin, end, new))
    return found


def draw(seed, n):
    """(number, mutants that it may be) for 1 to n: it is the first that compiles. Folders and kinds take turns."""
    found = places()
    folders, kinds, taken = sorted(found), list(KINDS), set()
    random.Random(f"folders {seed}").shuffle(folders)
    random.Random(f"kinds {seed}").shuffle(kinds)
    for number in range(1, n + 1):
        mutants, turn = [], number % len(kinds)
        for kind in kinds[turn:] + kinds[:turn]:
            pool = [mutant for mutant in found[folders[number % len(folders)]][kind] if mutant not in taken]
            random.Random(f"{seed} {number}").shuffle(pool)
            mutants += pool
        if mutants:
            taken.add(mutants[0])
            yield number, mutants
