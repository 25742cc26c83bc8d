"""Print how large the project is, by room, and each size beside the bound that it has to keep.

    python3 scripts/sizes.py

Only the standard library is used. A code line is one that is not blank and holds more than a comment or a docstring.
The last fourteen lines are the summary.
"""

import ast
import functools
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("tests", "benchmarks", "scripts", "examples", "data_prep")
PAGES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "benchmarks/**/*.md", "data_prep/**/*.md")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FEWEST_COMMENTS = 25  # per 1,000 code lines
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """The sizes of one file, or of several together."""

    files: int = 0
    lines: int = 0
    conditionals: int = 0
    nested: int = 0  # conditional expressions inside another one
    comprehensions: int = 0
    tuples: int = 0  # assignments of several names that are not one thing
    comments: int = 0
    longest: tuple[int, str] = (0, "")  # lines of the longest function without its docstring, and its name

    def __add__(self, other: "Size") -> "Size":
        return Size(
            self.files + other.files,
            self.lines + other.lines,
            self.conditionals + other.conditionals,
            self.nested + other.nested,
            self.comprehensions + other.comprehensions,
            self.tuples + other.tuples,
            self.comments + other.comments,
            max(self.longest, other.longest),
        )

    def per_thousand(self, count: int) -> float:
        """Return a count per 1,000 code lines."""
        return 1000 * count / max(self.lines, 1)


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return every node of the syntax tree of a Python file."""
    return list(ast.walk(ast.parse(path.read_text())))


def size_of(path: Path) -> Size:
    """Measure one Python file."""
    nodes = nodes_of(path)
    conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
    inner = {below for node in conditionals for below in ast.walk(node) if below is not node}
    functions = [(function_lines(node), f"{path.stem}.{node.name}") for node in nodes if isinstance(node, FUNCTIONS)]
    return Size(
        files=1,
        lines=len(code_lines(path)),
        conditionals=len(conditionals),
        nested=len(inner.intersection(conditionals)),
        comprehensions=sum(isinstance(node, COMPREHENSIONS) for node in nodes),
        tuples=len([*filter(is_tuple_assignment, nodes)]),
        comments=number_of_comments(path),
        longest=max(functions, default=(0, "")),
    )


def is_tuple_assignment(node: ast.AST) -> bool:
    """Return whether a node is `a, b = c, d`, which assigns several values in one line."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    return isinstance(node.value, ast.Tuple)


def number_of_comments(path: Path) -> int:
    """Count the comments of a file that have a line of their own; one behind a statement is part of its line."""
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def is_docstring(node: ast.AST) -> bool:
    """Return whether a node is text that stands alone: below a `def`, a `class` or a field, or at the top of a file."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def line_numbers(node: ast.AST) -> range:
    """Return the numbers of the lines on which a statement stands."""
    assert isinstance(node, ast.stmt) and node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold code."""
    numbers: set[int] = set()
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in NO_CODE:
                numbers.update(range(token.start[0], token.end[0] + 1))
    for node in filter(is_docstring, nodes_of(path)):
        numbers.difference_update(line_numbers(node))
    return numbers


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines from `def` to the end, without the docstring."""
    docstring = len(line_numbers(function.body[0])) if is_docstring(function.body[0]) else 0
    return len(line_numbers(function)) - docstring


def files_below(*folders: str) -> list[Path]:
    """Return the Python files of folders or files of the project."""
    places = [ROOT / folder for folder in folders]
    return sorted({path for place in places for path in ([place] if place.is_file() else place.rglob("*.py"))})


def room_of(path: Path) -> str:
    """Return the room of a file of the package: `readers`, `contrib/ros`, or the file itself at the top."""
    parts = path.relative_to(ROOT / "rvtssm").parts
    return "/".join(parts[:2]) if parts[0] == "contrib" and len(parts) > 2 else parts[0]


def sizes_of(paths: list[Path]) -> dict[Path, Size]:
    """Return the size of each file."""
    return {path: size_of(path) for path in paths}


def total(sizes: dict[Path, Size]) -> Size:
    """Return the size of several files together."""
    return sum(sizes.values(), Size())


def number_of_verbs() -> int:
    """Count the verbs of the core in the table of `rvtssm/cli/verbs.py`."""
    for node in nodes_of(ROOT / "rvtssm/cli/verbs.py"):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and ast.unparse(node).startswith("VERBS"):
            assert isinstance(node.value, ast.Dict)
            return len(node.value.keys)
    raise SystemExit("sizes: there is no table VERBS in rvtssm/cli/verbs.py")


def classes(paths: list[Path]) -> dict[str, dict[str, str]]:
    """Return the fields of every class with their annotations; of two classes of one name the first counts."""
    by_name: dict[str, dict[str, str]] = {}
    for path in paths:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name, dict(fields(node, by_name)))
    return by_name


def fields(node: ast.ClassDef, known: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, after those of its bases that are known."""
    for base in node.bases:
        yield from known.get(ast.unparse(base), {}).items()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, ast.unparse(statement.annotation)


def number_of_keys(core: list[Path]) -> int:
    """Count the keys of the core: the fields of `Config`, those of a section in its place."""
    known = classes([ROOT / "rvtssm/training/__init__.py", ROOT / "rvtssm/cli/config.py", *core])

    def count(name: str) -> int:
        return sum(count(annotation) if annotation in known else 1 for annotation in known[name].values())

    return count("Config")


def number_of_words() -> int:
    """Count the words of the pages."""
    return sum(len(path.read_text().split()) for pattern in PAGES for path in ROOT.glob(pattern))


def print_rooms(title: str, sizes: dict[str, Size]) -> None:
    """Print one line per room."""
    print(f"{title:<22}{'lines':>7}{'files':>7}{'cond':>7}{'nested':>8}{'compr':>7}  longest function")
    for name, size in sizes.items():
        rates = (size.per_thousand(size.conditionals), size.nested, size.per_thousand(size.comprehensions))
        numbers = f"{size.lines:>7}{size.files:>7}{rates[0]:>7.1f}{rates[1]:>8}{rates[2]:>7.1f}"
        print(f"{name:<22}{numbers}  {size.longest[0]} {size.longest[1]}")
    print()


def main() -> None:
    """Print the tables and the summary."""
    package = files_below("rvtssm")
    sizes = sizes_of(package)
    core = {path: size for path, size in sizes.items() if not room_of(path).startswith("contrib")}
    rooms: dict[str, Size] = {}
    for path, size in sizes.items():
        rooms[room_of(path)] = rooms.get(room_of(path), Size()) + size
    print_rooms("room", dict(sorted(rooms.items(), key=lambda item: (item[0].startswith("contrib"), item[0]))))
    beside = {name: total(sizes_of(files_below(name))) for name in BESIDE}
    print_rooms("beside the package", beside)
    whole, contrib = total(core), total({path: size for path, size in sizes.items() if path not in core})
    print(f"{'summary':<72}{'now':>9}{'at most':>9}")
    for name, value, bound in (
        ("core, code lines", whole.lines, 21_000),
        ("contrib, code lines", contrib.lines, 9_000),
        ("tests, code lines", beside["tests"].lines, 21_000),
        ("benchmarks, code lines", beside["benchmarks"].lines, 3_500),
        ("core, files", whole.files, 180),
        ("core, verbs", number_of_verbs(), 12),
        ("core, keys", number_of_keys(list(core)), 170),
        ("core, conditionals per 1,000 lines", whole.per_thousand(whole.conditionals), 15),
        ("core, conditionals inside another", whole.nested, 0),
        ("core, comprehensions per 1,000 lines", whole.per_thousand(whole.comprehensions), 26),
        ("core, tuple assignments per 1,000 lines", whole.per_thousand(whole.tuples), 6),
        (f"core, longest function ({whole.longest[1]})", whole.longest[0], 60),
        ("words of pages", number_of_words(), 25_000),
    ):
        mark = "  too large" if value > bound else ""
        print(f"{name:<72}{value:>9.0f}{bound:>9}{mark}")
    comments = whole.per_thousand(whole.comments)
    mark = "  too few" if comments < FEWEST_COMMENTS else ""
    print(f"{'core, comments per 1,000 lines (at least)':<72}{comments:>9.0f}{FEWEST_COMMENTS:>9}{mark}")


if __name__ == "__main__":
    main()
