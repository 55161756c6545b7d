"""Called by MkDocs. Two kinds of files that lie outside of docs/ become part of the site, so that every link in it has an end that the
build has seen: what a page links to above docs/ (a source, shown as another page), and doxygen's reference, in api/. A program and
its twin in Python take the place of `<!-- beside: PATH -->`. No page may load anything from elsewhere.
"""
import pathlib
import posixpath
import re
import textwrap
from html import escape

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
API = ROOT / "build/docs/api"
ASSETS = ("assets/javascripts/iframe-worker.js", "assets/stylesheets/site.css")  # from docs/site; mkdocs.yml has them, too
LINK = re.compile(r"\]\((\.\./[\w./-]+)(#[\w-]+)?\)")
BESIDE = re.compile(r"<!-- beside: ([\w./-]+) -->")
ELSEWHERE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>")
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".md": None, ".py": "python", ".toml": "toml", ".txt": "text", ".cmake": "cmake", "": "text"}


def outside(page, link):
    """What a page of docs/ links to, from the sources' root; None if that is another page of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def page_of(path):
    return f"source/{path}.md" if not path.endswith(".md") else f"source/{path}"


def source_page(path):
    file = ROOT / path
    if file.is_dir():
        entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in file.iterdir())
        return f"# {path}\n\nThe folder `{path}` of the sources has:\n\n" + "".join(f"- `{entry}`\n" for entry in entries)
    text = file.read_text()
    if file.suffix == ".md":
        return LINK.sub(r"](\1)", re.sub(r"\]\((?!https?:)[^)]*\)", "]", text).replace("![", "["))
    fence = "`" * (max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=3) + 1)
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}\n"


def on_files(files, config):
    wanted = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for link, _ in LINK.findall(page.read_text()):
            path = outside(page.relative_to(ROOT / "docs").as_posix(), link)
            if path is None:
                continue
            if not (ROOT / path).exists():
                raise PluginError(f"{page.relative_to(ROOT)} links to {path}, which is not there")
            wanted.add(path)
    for path in sorted(wanted):
        files.append(File.generated(config, page_of(path), content=source_page(path)))
    if not (API / "html/index.html").exists():
        raise PluginError("doxygen has not run: ./dev docs does it")
    for asset in ASSETS:
        files.append(File.generated(config, asset, abs_src_path=str(ROOT / "docs/site" / posixpath.basename(asset))))
    for file in sorted((API / "html").rglob("*")):
        if file.is_file():
            name = "api/" + file.relative_to(API / "html").as_posix()
            files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def beside(marker):
    """The program of that name with Troupe and with PyTorch, as two tabs."""
    tabs = ""
    for title, suffix in (("Troupe", ".cpp"), ("PyTorch", ".py")):
        text = (ROOT / (marker[1] + suffix)).read_text().strip()
        tabs += f'=== "{title}"\n\n' + textwrap.indent(f"```{LANGUAGES[suffix]}\n{text}\n```", "    ") + "\n\n"
    return tabs


def plain(html):
    return re.sub(r"<[^>]*>", "", html).strip()


def with_columns(table):
    """A table of words, not of numbers, is a list on a narrow screen: each cell but a row's first says of which column it is."""
    names = [plain(name) for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table[0])]
    cells = [plain(cell) for row in re.findall(r"<tr>(.*?)</tr>", table[0], re.DOTALL) for cell in re.findall(r"<td\b[^>]*>(.*?)</td>", row, re.DOTALL)[1:]]
    if not cells or ("meaning" not in names and sum(map(len, cells)) / len(cells) < 20):
        return table[0]

    def row(found):
        place = iter(range(len(names)))
        return re.sub(r"<td\b", lambda cell: cell[0] + (f' data-column="{escape(names[n])}"' if (n := next(place)) and names[n] else ""), found[0])

    return f'<div class="rows">{re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)}</div>'


def unbroken(text, word):
    """Text with HTML, in which no line ends within such a word of a piece of code."""
    return re.sub(r"(?<=<code>)[^<]*(?=</code>)", lambda code: re.sub(word, r'<span class="whole">\g<0></span>', code[0]), text)


def on_page_content(html, page, config, files):
    html = re.sub(r"<table>.*?</table>", lambda table: unbroken(table[0], r"(?<!\S)\S{2,32}(?!\S)"), html, flags=re.DOTALL)
    html = unbroken(html, r"(?<!\S)--?[a-z][\w-]*")
    return re.sub(r"<table>.*?</table>", with_columns, html, flags=re.DOTALL)


def on_post_page(output, page, config):
    found = ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} would load something from elsewhere: {found[0]}")
    return output


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown

    def to_source(link):
        path = outside(uri, link[1])
        return link[0] if path is None else f"]({posixpath.relpath(page_of(path), posixpath.dirname(uri) or '.')}{link[2] or ''})"

    return LINK.sub(to_source, BESIDE.sub(beside, markdown))
