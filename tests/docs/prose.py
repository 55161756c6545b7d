#!/usr/bin/env python3
"""How the pages read: sentences of more than 30 words, a page's median of more than 18, and patterns that house rules leave out. Code, tables,
lists and headings are left out. `prose.py` prints a table of all pages; `prose.py docs/gpu.md` each finding of a page."""
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS, MOST_MEDIAN = 30, 18
# What is found, and what is written in its place.
PATTERNS = {
    r"\b(?:is|are|was|were|be|been) told\b|\btells?\b": "says, reports, prints",
    r"\bso (?:many|few|much)\b(?! as| that)": "a number, or its name",
    r"\bnobody\b|\bsomebody\b|\bwhoever\b": "the process, the program",
    r"\b(?:rank|process|node|host|actor|thread|program|coordinator|agent|one|ones|that|those)s? who\b": "that, which",
    r"\bof (?:its|his|their|one's|your|our) own\b": "own",
    r"(?:^|[;:] )What [^?]*$": "no clause as a subject",
    r"(?:^|[;:] )Where [^?]*,": "if, when",
}
SHORT = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|al|approx|no|fig)\.$", re.IGNORECASE)


def pages():
    # Of docs/reference, which programs write, too, the tables are left out as everywhere; the paragraphs are read.
    listed = {ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")}
    return sorted(listed - {ROOT / "docs" / name for name in ("config.md", "mutations.md")})  # which programs write


def paragraphs(text):
    """The running text, a paragraph a string."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip().splitlines()
        if lines and not re.match(r"#|\||>|\s{4}|([-*+]|\d+\.)\s|<|---|!!!|\?\?\?", lines[0]):
            yield " ".join(line.strip() for line in lines if not line.lstrip().startswith("|"))


def plain(paragraph):
    paragraph = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    return re.sub(r"`[^`]*`", "code", paragraph).replace("**", "").replace("*", "")


def sentences(paragraph):
    begin = 0
    for end in re.finditer(r"[.!?][)\"”]?\s+(?=[A-Z0-9\"“(]|code\b)", paragraph):
        if SHORT.search(paragraph[begin:end.start() + 1]):
            continue
        yield paragraph[begin:end.end()].strip()
        begin = end.end()
    if paragraph[begin:].strip():
        yield paragraph[begin:].strip()


def words(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def findings(page):
    """(median, [(what, sentence)]) of a page."""
    found, lengths = [], []
    for paragraph in paragraphs(page.read_text()):
        for sentence in sentences(plain(paragraph)):
            count = len(words(sentence))
            lengths.append(count)
            if count > MOST_WORDS:
                found.append((f"{count} words", sentence))
            for pattern, better in PATTERNS.items():
                match = re.search(pattern, sentence)
                if match:
                    found.append((f"'{match.group(0).strip()[:24]}': {better}", sentence))
    return statistics.median(lengths) if lengths else 0, found


def main():
    chosen = [pathlib.Path(name).resolve() for name in sys.argv[1:]]
    wrong, long, other = 0, 0, 0
    for page in chosen or pages():
        median, found = findings(page)
        of_page = sum(re.match(r"\d+ words$", what) is not None for what, _ in found)
        long, other = long + of_page, other + len(found) - of_page
        wrong += len(found) + (median > MOST_MEDIAN)
        if chosen:
            print("\n".join(f"{what}\n    {sentence}" for what, sentence in found))
        print(f"{page.relative_to(ROOT)!s:32} median {median:4.0f}  above {MOST_WORDS} words {of_page:3}  patterns {len(found) - of_page:3}")
    print(f"{long} sentences above {MOST_WORDS} words, {other} patterns")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
