"""A terminal's text as a picture; pure Python. A line's beginning chooses its colour."""
import html
import re

PAPER, BAR, INK, FAINT = "#16191d", "#262b31", "#d7dce2", "#8b949e"
COLOURS = [(r"\$ ", "#7ee787"), (r"troupe: .*(died|ended)", "#ff7b72"), (r"troupe: ", "#e3b341"), (r"\[rank \d+\] step \d+ is run again", "#e3b341"),
           (r"dev: |…", FAINT), (r"", INK)]
LABEL = re.compile(r"\[rank \d+\]")
SIZE, ADVANCE, LINE, EDGE, TOP = 12, 7.23, 18, 16, 34


def spans(line):
    colour = next(colour for pattern, colour in COLOURS if re.match(pattern, line))
    label = LABEL.match(line)
    if label:
        yield "#79c0ff", label.group(0)
        line = line[label.end():]
    yield colour, line


def picture(text, title, description):
    """The lines of `text`; each begins where the font puts it and is as long as its characters, whichever monospaced font there is."""
    lines = text.splitlines()
    width = round(max(len(line) for line in lines) * ADVANCE + 2 * EDGE)
    height = TOP + len(lines) * LINE + EDGE
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           f"<title>{html.escape(description)}</title>",
           f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="#57606a"/>',
           f'<path d="M1 24V9a8 8 0 0 1 8-8H{width - 9}a8 8 0 0 1 8 8v15z" fill="{BAR}"/>']
    out += [f'<circle cx="{x}" cy="12.5" r="4.5" fill="#57606a"/>' for x in (16, 31, 46)]
    out.append(f'<text x="{width / 2:g}" y="17" text-anchor="middle" font-family="sans-serif" font-size="12" fill="{FAINT}">{html.escape(title)}</text>')
    out.append(f'<g font-family="ui-monospace,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{SIZE}">')
    for number, line in enumerate(lines):
        column, y = 0, TOP + number * LINE + 13
        for colour, part in spans(line):
            if part.strip():
                x, length = EDGE + column * ADVANCE, len(part) * ADVANCE
                out.append(f'<text x="{x:g}" y="{y}" fill="{colour}" textLength="{length:g}" lengthAdjust="spacing">{html.escape(part).replace(" ", chr(0xA0))}</text>')
            column += len(part)
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"
