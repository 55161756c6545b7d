"""CSV files of many dialects, and what pandas.read_csv reads in them: `rows`, one number a field. Whether the first line names the columns
is pandas' argument `header`, which is given as the file was drawn; our reader has to see it in the file.
"""

import gzip
import io
import random
import warnings

import numpy
import pandas

from cases import Case

warnings.simplefilter("ignore", pandas.errors.ParserWarning)  # that it fills up or cuts off: our reader refuses these
TOOL = f"pandas {pandas.__version__}"
MISSING = "NaN and infinity would end up in the weights"
RAGGED = "pandas fills up with NaN"
INDEX = "pandas makes it a column of its own, though the numbers of the rows say nothing about the sample"
COUNT = "it may be a row as well"
SIZE = "a float cannot hold it, and inputs are floats"
LATIN = "names of columns are only shown in messages"


def usual(data, header):
    """What pandas reads, or None where it refuses or does not read numbers."""
    compression = "gzip" if data[:2] == b"\x1f\x8b" else None
    try:
        table = pandas.read_csv(
            io.BytesIO(data),
            header=0 if header else None,
            comment="#",
            float_precision="round_trip",
            compression=compression,
            index_col=False if header else None,
        )
    except Exception:  # pandas has many kinds
        return None
    if not all(pandas.api.types.is_numeric_dtype(kind) and kind != bool for kind in table.dtypes):
        return None
    return table.to_numpy(dtype=numpy.float64)


def read(name, data, header, folder="a.csv"):
    if isinstance(data, str):
        data = data.encode()
    return Case(name, {folder: data}, {"rows": usual(data, header)})


def refused(name, data, words, why="", header=False):
    if isinstance(data, str):
        data = data.encode()
    return Case(name, {"a.csv": data}, refused=words, on_purpose=why if usual(data, header) is not None else "")


def number(draw):
    whole = draw.randrange(0, 10 ** draw.choice([1, 2, 5, 9]))
    part = draw.choice(["", "", f".{draw.randrange(10 ** 6):06d}", ".", f".{draw.randrange(10 ** 17):017d}"])
    power = draw.choice(["", "", "", f"e{draw.randrange(-9, 9)}", f"E+{draw.randrange(9):02d}"])
    text = draw.choice(["", "", "-", "+"]) + str(whole) + part + power
    return draw.choice([".5", "-.25", "-0.0", "+0", "0.0", "007"]) if draw.random() < 0.1 else text


def packed(draw, data):
    kind = draw.choice(["plain"] * 6 + ["gzip", "members", "padded"])
    if kind == "plain":
        return data
    at = draw.randrange(len(data)) if kind == "members" else len(data)
    parts = [gzip.compress(part, mtime=0) for part in (data[:at], data[at:]) if part]
    return b"".join(parts) + (bytes(draw.randrange(1, 9)) if kind == "padded" else b"")


BAD = [
    "",
    "nan",
    "NA",
    "N/A",
    "null",
    "None",
    "inf",
    "-inf",
    "Infinity",
    "x",
    "0x1F",
    "1_000",
    "1;2",
    "True",
    "1e400",
    "3.5e38",
    "--1",
    "+-1",
    "1e",
    "\u22121",
    "1 2",
    ".",
    "-",
    "1.2.3",
    "12a",
    "1\t2",
    "1e5.5",
    "#N/A",
    "12,5",
]


def drawn(draw, at, bad):
    columns, count = draw.randrange(2, 6), draw.randrange(2, 6)
    rows = [[number(draw) for _ in range(columns)] for _ in range(count)]
    header = draw.random() < 0.5
    end = draw.choice(["\n", "\n", "\r\n", "\r"])
    quoted = draw.choice([set(), set(), set(range(columns)), {column for column in range(columns) if draw.random() < 0.5}])
    blank = draw.choice(["", "", " ", "  ", "\t"])
    lines, line_of = [], {}

    def filler():
        while draw.random() < 0.2:
            lines.append(draw.choice(["", "# a comment, with a comma", "#"]))

    def field(text, column):
        before = "" if end == "\r" and column == 0 else blank  # there pandas loses the line's end
        return f'"{text}"' if column in quoted else draw.choice([text, before + text, text + blank])

    filler()
    if header:
        lines.append(",".join(draw.choice(["{}", '"{}"']).format(f"name {column}") for column in range(columns)))
    place = (draw.randrange(count), draw.randrange(columns))
    if bad is not None:
        rows[place[0]][place[1]] = bad
    for row, fields in enumerate(rows):
        filler()
        line_of[row] = len(lines) + 1
        lines.append(",".join(field(text, column) for column, text in enumerate(fields)))
    text = end.join(lines) + draw.choice([end, end, ""])
    data = packed(draw, draw.choice([b"", b"", b"\xef\xbb\xbf"]) + text.encode())
    if bad is None:
        return read(f"drawn {at}", data, header)
    line = line_of[place[0]]
    if bad == "12,5" and place[1] not in quoted:  # one column more
        words = f"a.csv:{line_of[1] if place[0] == 0 and not header else line}: it has"
    else:
        words = f"a.csv:{line}: column {place[1] + 1}"
    return refused(f"bad {at}: {bad!r}", data, words, SIZE if bad in ("1e400", "3.5e38") else MISSING, header)


def by_hand():
    yield read("no line end at the end", "1,2,0\n3,4,1", False)
    yield read("a mark before the first row", b"\xef\xbb\xbf1,2,0\n3,4,1\n", False)
    yield read("a mark before a header", b"\xef\xbb\xbfx,y,label\n1,2,0\n", True)
    yield read("a mark before quotes", b'\xef\xbb\xbf"1",2,0\n"3",4,1\n', False)
    yield read("a plus sign in the first row", "+0,1,0\n+1,2,1\n", False)
    yield read("quotes around a name with a comma", '"x, in m",y,label\n1,2,0\n', True)
    yield read("a name over two lines", '"x\nin m",y,label\n1,2,0\n', True)
    yield read("a name with quotes", '"x ""m""",y,label\n1,2,0\n', True)
    yield read("names with a number among ten", "a,b,c,d,e,f,g,h,i,2020\n" + "1,2,3,4,5,6,7,8,9,0\n" * 2, True)
    yield read("names that say missing", "NA,K,nan\n1,2,0\n", True)
    yield read("two names alike", "x,x,label\n1,2,0\n", True)
    yield read("comments before a header", "# made by hand\n#x,y\nx,y,label\n1,2,0\n", True)
    yield read("empty lines before a header", "\n\r\n  \nx,y,label\n1,2,0\n", True)
    yield read("CR alone", "1,2,0\r3,4,1\r", False)
    yield read("line ends of three kinds", "1,2,0\r\n3,4,1\r5,6,2\n", False)
    yield read("one row", "1.5,2", False)
    yield read("one row of two numbers that count", "0,1\n", False)
    yield read("counting, and more", "0,1,3\n", False)
    yield read("17 digits", "0.12345678901234567,1\n5e-324,0\n1.7976931348623157e30,0\n", False)
    yield read("a hundred zeros", "0." + "0" * 30 + "1,1\n", False)
    yield read("a label with a point", "1,0.0\n2,1.0\n", False)
    yield read("gzip of three members", b"".join(gzip.compress(part, mtime=0) for part in (b"1,2", b",0\n3,", b"4,1\n")), False)
    for word in ("x", "nan", "", "0x1", "1 000", "True", "1l"):
        yield refused(f"the first row holds {word!r}", f"{word},2,0\n3,4,1\n", "a.csv:1: column 1", MISSING)
        yield refused(f"the first row ends in {word!r}", f"1,2,{word}\n3,4,1\n", "a.csv:1: column 3", MISSING)
    yield refused("a row of nothing but missing values", "nan,,NA\n3,4,1\n", "a.csv:1: column 1", MISSING)
    yield refused("a name among numbers", "0,1,2,label\n1,2,3,0\n", "a.csv:1: column 4: 'label'", COUNT, True)
    yield refused("names that count from 0", "0,1,2\n5,6,0\n", "a.csv:1: its fields count 0, 1, 2", COUNT, True)
    yield refused("names that count from 1", "1,2,3\n5,6,0\n", "a.csv:1: its fields count 1, 2, 3", COUNT, True)
    yield refused("names that are quoted numbers", '"7","8"\n5,0\n', "a.csv:1: its numbers are quoted", COUNT, True)
    yield refused("the numbers of the rows", ",x,label\n0,5,1\n1,6,0\n", "a.csv:1: column 1 has no name", INDEX, True)
    yield refused("labels that are words", "x,y,label\n1,2,cat\n", "a.csv:2: column 3 ('label'): 'cat' is not a finite number", "", True)
    yield refused("labels that are words, no header", "1,2,cat\n", "a.csv:1: column 3: 'cat'")
    yield refused("a shorter row", "1,2,0\n3,4\n", "a.csv:2: it has 2 columns, the lines before have 3", RAGGED)
    yield refused("a longer row", "1,2,0\n3,4,1,5\n", "a.csv:2: it has 4 columns, the lines before have 3")
    yield refused("a comma at each line's end", "1,2,0,\n3,4,1,\n", "a.csv:1: column 4: it is empty", MISSING)
    yield refused("a comma at one line's end", "1,2,0\n3,4,1,\n", "remove the comma at its end")
    yield refused(
        "one field more than names, as R writes",
        "x,label\n1,5,0\n2,6,1\n",
        "a.csv:2: it has 3 columns",
        "pandas takes the first for the rows' names",
        True,
    )
    yield refused("semicolons", "x;y;label\n1;2;0\n", "a.csv:1: its columns are not separated by commas", "", True)
    yield refused("semicolons, no header", "1;2;0\n3;4;1\n", "a.csv:1: its columns are not separated by commas")
    yield refused("decimal commas", "1,5;2,5;0\n", "a.csv:1: column 2: '5;2'")
    yield refused("tabs", "x\ty\tlabel\n1\t2\t0\n", "a.csv:1: its columns are not separated by commas", "", True)
    yield refused("thousands", 'x,label\n"1,000",0\n', "a.csv:2: column 1 ('x'): '1,000' is not a finite number", "", True)
    yield refused("a quote that stays open", 'x,label\n1,0\n"2,1\n3,0\n', "a.csv:3: a quote opens and is not closed", "", True)
    yield refused(
        "text behind a quote", 'x,label\n"1"2,0\n', "a.csv:2: text follows the closing quote", "pandas glues both together", True
    )
    yield refused("a comment behind a row", "1,2,0 # why\n3,4,1\n", "a.csv:1: column 3", "a '#' in a row may belong to the value")
    for kind in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        yield refused(kind, "x,y,label\n1,2,0\n".encode(kind), "a.csv:1: it is not UTF-8", "", True)
    yield refused("a NUL byte", b"1,2,0\n3,\x004,1\n", "a.csv:2: it is not UTF-8: offset 8 holds a NUL byte")
    yield refused("empty", "", "it holds no rows")
    yield refused("a header alone", "x,y,label\n", "it holds no rows", "there is nothing to train on", True)
    yield refused("comments alone", "# x\n#y\n", "it holds no rows")
    yield refused("a workbook", b"PK\x03\x04" + bytes(range(40)), "is a zip archive")
    packed_rows = gzip.compress(b"1,2,0\n3,4,1\n", mtime=0)
    yield refused("plain bytes behind gzip", packed_rows + b"5,6,2\n", "after its compressed part come 6 bytes")
    yield refused("plain bytes behind gzip and zeros", packed_rows + bytes(4) + b"5,6,2\n", "after its compressed part come 6 bytes")
    yield refused("gzip that is cut off", packed_rows[:-6], "the compressed file ends early")
    yield refused("gzip whose second member is cut off", packed_rows + packed_rows[:12], "the compressed file ends early")
    yield refused("gzip with a wrong sum", packed_rows[:-8] + b"\0\0\0\0" + packed_rows[-4:], "cannot read on after byte")
    latin = "gr\u00f6\u00dfe,label\n1,0\n".encode("latin-1")
    yield Case("names in Latin-1", {"a.csv": latin}, {"rows": numpy.array([[1.0, 0.0]])}, on_purpose=LATIN)


def cases():
    yield from by_hand()
    draw = random.Random(32)
    for at in range(160):
        yield drawn(draw, at, None)
    for at in range(3 * len(BAD)):
        yield drawn(draw, at, BAD[at % len(BAD)])
