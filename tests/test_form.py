"""Bodies read at their length: what ruff has no rule for, read from the source with `ast`."""

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = runpy.run_path(str(ROOT / "scripts/sizes.py"))
MOST_LINES = 60  # of a function, without its docstring
SIMPLE_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Assert, ast.Delete)


def number(kind: type | tuple[type, ...], node: ast.AST) -> int:
    return sum(isinstance(below, kind) for below in ast.walk(node))


def faults(tree: ast.Module) -> Iterator[str]:
    """The lines that break a rule."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and number(ast.IfExp, node) > 1:
            yield f"{node.lineno}: a conditional expression inside another"
        if isinstance(node, SIMPLE_STATEMENTS) and number(SIZES["COMPREHENSIONS"], node) > 1:
            yield f"{node.lineno}: more than one comprehension in a statement"
        if isinstance(node, SIZES["FUNCTIONS"]) and (num_lines := SIZES["function_lines"](node)) > MOST_LINES:
            yield f"{node.lineno}: {node.name} has {num_lines} lines; at most {MOST_LINES}"


def test_bodies_read_at_their_length():
    paths = {
        path for folder in ("rvtssm", "benchmarks", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")
    }
    broken = {str(path.relative_to(ROOT)): [*faults(ast.parse(path.read_text()))] for path in paths}
    assert {path: lines for path, lines in broken.items() if lines} == {}
