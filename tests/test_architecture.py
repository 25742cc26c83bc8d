"""The package keeps its shape: who imports whom.

The rules are read from the source with `ast`, so an import inside a function counts as well.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rvtssm"
FILES = sorted(PACKAGE.rglob("*.py"))

# The core, from the ground up: a room may import the rooms of its row.
GROUND = {"system"}  # files and processes, which every room may use
MAY_IMPORT: dict[str, set[str]] = {
    "system": set(),
    "records": {"system"},
    "boxes": {"records"},
    "readers": {"records", "events.windows"},
    "ssm": set(),
    "events": {"records", "readers"},
    "models": {"records", "boxes", "ssm"},
    "datasets": {"records", "boxes", "events", "readers"},
    "checks": {"records", "events", "readers", "datasets"},
    "drawing": {"records", "boxes", "events", "readers"},
    "export": {"records", "events", "models", "detection.sources"},
    "detection": {"records", "boxes", "events", "readers", "datasets", "models", "drawing", "export"},
    "evaluation": {"records", "boxes", "events", "readers", "datasets", "models", "drawing", "detection", "export"},
    "training": {"records", "boxes", "readers", "events", "ssm", "datasets", "models", "drawing", "evaluation"},
}
ROOMS = MAY_IMPORT.keys() - GROUND
for row in ROOMS:
    MAY_IMPORT[row] |= GROUND
MAY_IMPORT |= {
    "__init__": GROUND | ROOMS,  # the promised names
    "__main__": {"cli"},
    "testing": GROUND | {"ssm"},
    "cli": GROUND | ROOMS,
}
CONTRIB = {path.name for path in (PACKAGE / "contrib").iterdir() if path.is_dir() and not path.name.startswith("_")}
# Folders of contrib that need another one.
NEEDS = {"studies": {"contrib.demo"}, "worlds": {"contrib.demo"}}
MAY_IMPORT |= {f"contrib.{name}": GROUND | ROOMS | {"cli"} | NEEDS.get(name, set()) for name in CONTRIB}
MAY_IMPORT |= {"contrib": set()}
# torch and what brings it along; preparation workers start without them
TORCH = {"torch", "torchvision", "lightning", "pytorch_lightning", "timm"}
WITHOUT_TORCH = (*sorted(GROUND), "records", "readers", "events", "checks", "contrib.demo", "contrib.worlds")
# modules of datasets
PREPARING = {"compress", "custom", "prepare_dataset", "prepare_recording", "sections", "store", "store_writer", "tree"}
MAY_NOT_IMPORT = {
    **{room: {"hydra", "omegaconf"} for room in ROOMS | GROUND},
    **{room: {*TORCH, "hydra", "omegaconf"} for room in WITHOUT_TORCH if not room.startswith("contrib.")},
}


def module_name(path: Path) -> str:
    """`rvtssm.readers.dat` for .../rvtssm/readers/dat.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def room_of(module: str) -> str:
    parts = module.split(".")[1:] or ["__init__"]
    return ".".join(parts[:2] if parts[0] == "contrib" else parts[:1])


def starts_without_torch(module: str) -> bool:
    room, _, name = module.removeprefix("rvtssm.").rpartition(".")
    return room_of(module) in WITHOUT_TORCH or (room == "datasets" and name in PREPARING)


def nodes_of(tree: ast.Module, at_runtime: bool = False) -> Iterator[ast.AST]:
    """Every node of a source, or without those below `if TYPE_CHECKING`."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        if at_runtime and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
        else:
            left += ast.iter_child_nodes(node)


def imports(nodes: Iterable[ast.AST], module: str, is_package: bool = False) -> set[str]:
    """Every module or name that is imported, in absolute form: `from a import b` gives `a.b`."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


@dataclass(frozen=True)
class Source:
    """What the rules ask of a file, found in one reading."""

    imports: set[str]
    runtime_imports: set[str]  # without what stands under `if TYPE_CHECKING`


@functools.cache
def read(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    where, nodes = (module_name(path), path.name == "__init__.py"), list(nodes_of(tree))
    return Source(imports(nodes, *where), imports(nodes_of(tree, at_runtime=True), *where))


def test_a_room_imports_only_what_its_row_allows():
    wrong = []
    for path in FILES:
        room = room_of(module_name(path))
        assert room in MAY_IMPORT, f"{room} is a new room: give it a row in MAY_IMPORT, and in the table of the README"
        allowed = MAY_IMPORT[room] | {room, "__version__"}
        for name in read(path).imports:
            package, _, rest = name.partition(".")
            if package == "rvtssm" and not any(f"{rest}.".startswith(f"{entry}.") for entry in allowed):
                wrong.append(f"{module_name(path)} imports {name}; {room} may import {', '.join(sorted(allowed))}")
    assert not wrong


def test_the_modules_that_start_without_torch_exist():
    modules = {path.stem for path in (PACKAGE / "datasets").glob("*.py")}
    assert modules >= PREPARING


def test_rooms_stand_on_each_other_in_one_order():
    whole = {room: {name for name in MAY_IMPORT[room] if "." not in name} for room in ROOMS}
    order = graphlib.TopologicalSorter(whole)
    assert list(order.static_order())  # raises CycleError, which names the rooms


def test_a_room_stays_away_from_foreign_packages():
    foreign = {path: {name.split(".")[0] for name in read(path).runtime_imports} for path in FILES}
    wrong = {path: found & MAY_NOT_IMPORT.get(room_of(module_name(path)), set()) for path, found in foreign.items()}
    assert not {str(path): found for path, found in wrong.items() if found}


def test_what_prepares_recordings_starts_without_torch():
    modules = [name for name in map(module_name, FILES) if starts_without_torch(name)]
    of_weights = ("rvtssm.contrib.demo.demo", "rvtssm.contrib.worlds.simulate", "rvtssm.contrib.worlds.label_video")
    modules = [name for name in modules if not name.startswith(of_weights)]
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
loaded = {sorted(TORCH)!r}
sys.exit(" ".join(name for name in loaded if name in sys.modules) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, f"importing the room loads: {done.stderr}"


def test_every_promised_name_exists():
    import rvtssm

    assert [name for name in rvtssm.__all__ if not hasattr(rvtssm, name)] == []
