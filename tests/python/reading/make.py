"""Makes tests/reading/cases/READER.json with the usual tools: make.py [--check] [READER..]

--check compares what the tools say now with what lies there, and exits with 1 if a case differs. Without readers: all for which there is a
module make_READER.py.
"""
import importlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE.parents[1] / "reading/cases"
sys.path.insert(0, str(HERE))


def text_of(module):
    lines = [json.dumps(case.entry(), ensure_ascii=True) for case in module.cases()]
    return '{"tool": ' + json.dumps(module.TOOL) + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"


def differences(made, there):
    made, there = ({case["name"]: case for case in json.loads(text)["cases"]} for text in (made, there))
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(words):
    check = "--check" in words
    readers = [word for word in words if word != "--check"] or sorted(path.stem[len("make_"):] for path in HERE.glob("make_*.py"))
    wrong = 0
    for reader in readers:
        module = importlib.import_module(f"make_{reader}")
        file, text = CASES / f"{reader}.json", text_of(module)
        if not check:
            file.write_text(text)
        differ = differences(text, file.read_text())
        print(f"{reader}: {text.count(chr(10)) - 2} cases, {module.TOOL}" + (f"; {len(differ)} differ: {', '.join(differ[:5])}" if differ else ""))
        wrong += len(differ)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
