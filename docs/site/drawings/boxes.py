"""What the drawings of boxes and arrows have in common; pure Python. Text is measured as a common sans-serif sets it."""
import html

PAPER, INK, FAINT, LINE = "#ffffff", "#1f2328", "#57606a", "#444444"
FILLS = {"blue": ("#eef4fb", "#30639b"), "gold": ("#fdf3e3", "#a8721b"), "grey": ("#f5f6f8", "#99a1ab"), "red": ("#fdeceb", "#b3261e")}


def svg(width, height, description, parts):
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{html.escape(description)}</title>",
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>']
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def text(x, y, words, anchor="start", size=13, colour=INK, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>{html.escape(words)}</text>'


def box(x, y, width, height, kind="blue"):
    fill, stroke = FILLS[kind]
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{stroke}"/>'


def arrow(x1, y1, x2, y2, both=False, dashed=False):
    start = ' marker-start="url(#a)"' if both else ""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" fill="none" stroke="{LINE}" marker-end="url(#a)"{start}{dashes}/>'


def wrapped(words, most):
    """Lines of at most `most` characters."""
    lines = [""]
    for word in words.split():
        if len(lines[-1]) + len(word) + 1 > most and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
