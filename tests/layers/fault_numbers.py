"""Every fault of docs/faults.md has a test by its number, and the page names the file that it is in; every fault_point of the sources is one of
fault_places(), which decides what a test may name: fault_numbers.py [ROOT]

A test is one that `ctest -R 'fault N:'` or `-R 'fault N,'` would find: the name of a TEST_CASE, or of a test in a CMakeLists.txt. Prints one
line per fault that lacks something, and exits with 1 if there was one. Before that it judges lists with one sin each.
"""
import pathlib
import re
import sys

FAULTS = range(1, 45)


def tests_of(sources):
    """sources: path -> text. number -> the files (without folder and ending) of its tests."""
    found = {}
    for path, text in sources.items():
        if path.endswith(".cpp"):
            names = re.findall(r'TEST_CASE\(\s*"([^"]*)"', text)
        else:
            calls = re.findall(r'(?:troupe_script_test|net_test)\("([^"]*)"\s+(?:[\w/]+/)?(\w+)\.py', text)
            names, scripts = [name for name, _ in calls], [script for _, script in calls]
        for i, name in enumerate(names):
            file = pathlib.Path(path).stem if path.endswith(".cpp") else scripts[i]
            for number in re.findall(r"fault (\d+)[:,]", name):
                found.setdefault(int(number), set()).add(file)
    return found


def findings(tests, page):
    rows = {int(number): row for number, row in re.findall(r"^\| (\d+) (\|.*)$", page, re.M)}
    for number in FAULTS:
        row = rows.get(number)
        if row is None:
            yield f"fault {number}: docs/faults.md has no row"
        elif number not in tests:
            yield f"fault {number}: no test has its number"
        else:
            named = {word.removesuffix(".cpp") for word in re.findall(r"[\w./]+", row.rsplit("|", 2)[-2])}
            named = {pathlib.PurePosixPath(word).name for word in named}
            missing = sorted(file for file in tests[number] if file not in named)
            if missing:
                yield f"fault {number}: its row does not name {', '.join(missing)}"


def unknown_places(sources):
    """sources: path -> text. Places that fault_places() does not have, or that no source comes by."""
    known = re.search(r"fault_places\(\) \{(.*?)\};", sources["tensor_io/base/fault_point.cpp"], re.S)
    known = set(re.findall(r'"(\w+)"', known.group(1)))
    used = {place for text in sources.values() for place in re.findall(r'fault_point\("(\w+)"', text)}
    yield from (f"fault_point: '{place}' is not among fault_places()" for place in sorted(used - known))
    yield from (f"fault_places: no source comes by '{place}'" for place in sorted(known - used))


def self_test():
    point = {"tensor_io/base/fault_point.cpp": 'fault_places() {\n  places{"vote", "end"};', "a.cpp": 'fault_point("vote", 1); fault_point("x", 1);'}
    assert list(unknown_places(point)) == ["fault_point: 'x' is not among fault_places()", "fault_places: no source comes by 'end'"]
    sources = {"tests/a_test.cpp": 'TEST_CASE("[L05] fault 1: x") {}\nTEST_CASE(\n    "fault 2, fault 3: y") {}',
               "tests/net/CMakeLists.txt": 'troupe_script_test("net: fault 4, fault 5: z" folder/b_test.py $<x>)'}
    tests = tests_of(sources)
    assert tests == {1: {"a_test"}, 2: {"a_test"}, 3: {"a_test"}, 4: {"b_test"}, 5: {"b_test"}}, tests
    tests = {number: {"a_test"} for number in FAULTS}
    rows = {number: f"| {number} | what | then | net/a_test |\n" for number in FAULTS}
    page = "".join(rows.values())
    assert list(findings(tests, page)) == []
    assert list(findings({**tests, 7: {"a_test", "c_test"}}, page)) == ["fault 7: its row does not name c_test"]
    assert list(findings({k: v for k, v in tests.items() if k != 7}, page)) == ["fault 7: no test has its number"]
    assert list(findings(tests, page.replace(rows[7], ""))) == ["fault 7: docs/faults.md has no row"]


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = [*sorted((root / "tests").rglob("*.cpp")), *sorted((root / "tests").rglob("CMakeLists.txt"))]
    tests = tests_of({file.relative_to(root).as_posix(): file.read_text() for file in files})
    found = list(findings(tests, (root / "docs/faults.md").read_text()))
    code = [file for folder in ("tensor_io", "actors", "strategies", "launch") for file in sorted((root / folder).rglob("*.?pp"))]
    found += unknown_places({file.relative_to(root).as_posix(): file.read_text() for file in code})
    for line in found:
        print(line)
    print(f"{len(found)} findings; {len([n for n in FAULTS if n in tests])} of {len(FAULTS)} faults have a test by number")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
