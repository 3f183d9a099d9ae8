"""The scripts and styles of the widgets, out of our own files: anywidget takes one text, which imports no neighbours.

Notebook process; called once per widget class by ``engine_widget`` and ``program_widget``, for the core by ``view_widget``.
A package has them minified and packed (``labextension/minify.mjs``): what two or more widgets need is the core then, which
a kernel sends once, and a widget's script is the rest (``static/loader.js`` puts them together in the page). Those are
taken while they are of the same modules; else each script is joined here, and whole. The modules in ``static/`` keep to a
small form, checked here: imports stand first, as ``import { a, b as c } from "./x.js";``; exports are ``export
function|class|const|async function NAME``, and one ``export default NAME;`` in an entry; no text spans lines. Comments on
lines of their own and indentation are dropped. No network, no tools.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import re

STATIC = pathlib.Path(__file__).parent / "static"
MINIFIED = pathlib.Path(__file__).parents[1] / "labextension" / "widgets"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|class|const) (\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default (\w+|\{[^}]*\});\n", re.MULTILINE)


class BundleError(ValueError):
    """A module is not in the form that can be joined."""


def script_of(entry: str) -> str:
    """The script of a widget: small, as packaged, if that was made of the modules as they are, else joined."""
    return _packaged(MINIFIED).get(entry) or join_modules(entry)


def packed_core() -> str:
    """The core that packaged scripts need, packed; empty when scripts are joined ones, which need none."""
    return _packaged(MINIFIED).get("core.packed", "")


def styles_of(*names: str) -> str:
    """Files of styles in ``static/``, one after another."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


@functools.cache
def _packaged(folder: pathlib.Path) -> dict[str, str]:
    """The packaged files by name, read at once since they go together; none where they are of other modules than ours."""
    try:
        files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    except OSError:  # a source tree whose side panel was not built
        return {}
    mark = f"// {_mark()}\n"
    whole = all(text.startswith(mark) for text in files.values())
    return {name: text.removeprefix(mark).rstrip("\n") for name, text in files.items()} if whole else {}


def _mark() -> str:
    """Names the modules as they are; ``minify.mjs`` counts the same."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.glob("*.js")):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def join_modules(entry: str) -> str:
    """The script of ``entry`` (a file name in ``static/``) with all it imports, each module once, in order of need."""
    order: list[str] = []
    used: dict[str, set[str]] = {}
    _visit(entry, order, (), used)
    parts = [_wrap(name, used[name]) for name in order[:-1]]
    body, default = _body(entry)
    if default is None:
        raise BundleError(f"{entry}: an entry ends with `export default NAME;`")
    return "\n".join([*parts, body, f"export default {default};", ""])


def _source(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _visit(name: str, order: list[str], above: tuple[str, ...], used: dict[str, set[str]]) -> None:
    """Put ``name`` behind what it imports; ``used``: which names of a module the others take."""
    if name in above:
        raise BundleError(f"{' → '.join((*above, name))}: modules import each other in a circle")
    if name in order:
        return
    for match in _IMPORT.finditer(_source(name)):
        taken = {part.split(" as ")[0].strip() for part in match[1].split(",") if part.strip()}
        used.setdefault(match[2], set()).update(taken)
        _visit(match[2], order, (*above, name), used)
    order.append(name)


def _variable(name: str) -> str:
    return f"m_{name.removesuffix('.js')}"


def _body(name: str) -> tuple[str, str | None]:
    """The module's code with its imports taken from the modules' variables; and what it exports as default."""
    source = _source(name)

    def take(match: re.Match[str]) -> str:
        names = ", ".join(part.strip().replace(" as ", ": ") for part in match[1].split(",") if part.strip())
        return f"const {{ {names} }} = {_variable(match[2])};\n"

    default = _DEFAULT.search(source)
    code = _EXPORT.sub(r"\1 \2", _IMPORT.sub(take, _DEFAULT.sub("", source)))
    lines = code.splitlines()
    if left := [line for line in lines if line.startswith(("import ", "export "))]:
        raise BundleError(f"{name}: {left[0]!r} is not in the form that can be joined")
    return "\n".join(line.lstrip() for line in lines if line and not line.lstrip().startswith("//")), default[
        1
    ] if default else None


def _wrap(name: str, used: set[str]) -> str:
    """The module as a variable that holds what others take of it; a minifier drops the rest."""
    exported = [match[2] for match in _EXPORT.finditer(_source(name))]
    if missing := used - set(exported):
        raise BundleError(f"{name} does not export {', '.join(sorted(missing))}")
    names = ", ".join(one for one in exported if one in used)
    return f"const {_variable(name)} = (() => {{\n{_body(name)[0]}\nreturn {{ {names} }};\n}})();"
