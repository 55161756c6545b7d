"""What a compile refuses: one line that names the place in the user's Python and the way on."""


class Refusal(Exception):
    """The command prints it after `troupe compile: ` and ends with exit code 2."""


def line_of(node):
    """The user's line that a node of a graph comes from: `model.py:12 (x = self.layer(x))`, or an empty text."""
    trace = (node.meta.get("stack_trace") or "").rstrip().splitlines()
    for place, code in reversed(list(zip(trace, trace[1:]))):
        place = place.strip()
        if not place.startswith('File "') or "/torch/" in place:
            continue
        path, line = place.split('"')[1], place.split("line ")[1].split(",")[0]
        return f"{path.rsplit('/', 1)[-1]}:{line} ({code.strip()})"
    return ""


def at(node):
    """` at LINE`, for the end of a sentence."""
    line = line_of(node)
    return f" at {line}" if line else ""
