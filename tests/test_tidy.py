"""The code keeps the rules it set itself: import levels, sizes, who may import what, docstrings."""

import ast
import re
from pathlib import Path

import pytest

from edge_appliance.metrics import Metrics

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "edge_appliance"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
COMPILED = sorted(PACKAGE.rglob("*.p[yx][xi]"))
"""Cython's sources: what is included belongs to the module that includes it."""
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
EXTENSIONS = [path for path in COMPILED if path.suffix == ".pyx"]

ONLY_IMPORTERS = {
    "paho": {"mqtt"},
    "sqlite3": {"catalog", "catalog_file"},
    "pyarrow.parquet": {"parquet_file"},
    "datafusion": {"sql"},
    "obstore": {"store", "store_client"},
    "aiohttp": {"http"},
    "psutil": {"host"},
    "sdnotify": {"systemd"},
    "tomli": {"config_reader", "config_files", "config"},
    "uvloop": {"appliance"},
}
IMPURE = {"os", "socket", "threading", "time", "logging", "asyncio", "pathlib", "subprocess", "random", "sqlite3", "io"}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def imports_of(path: Path) -> set[str]:
    """Full names of all imported modules, wherever they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def internal_imports(path: Path) -> set[str]:
    """Imported modules of the package, by their name in the table."""
    known = {name_of(module) for module in MODULES + EXTENSIONS}
    names = {name.removeprefix("edge_appliance.").replace(".", "/") for name in imports_of(path)}
    return names & known


def levels() -> dict[str, int]:
    """The table of ARCHITECTURE.md: module to level."""
    table: dict[str, int] = {}
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if match := re.match(r"\| (\d+) \|(.*)\|$", line):
            for name in re.findall(r"`([\w/]+)`", match[2]):
                assert name not in table, f"{name} is listed twice"
                table[name] = int(match[1])
    return table


def level_of(name: str, table: dict[str, int]) -> int | None:
    """A whole package may be listed by its name."""
    return table.get(name, table.get(name.split("/", maxsplit=1)[0]))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_in_the_table_and_imports_only_lower_levels(path):
    """Arrows go down only; inside `http` and `cli`, which are listed whole, they may not go in a circle."""
    table = levels()
    own = level_of(name_of(path), table)
    assert own is not None, f"{name_of(path)} is missing in the table of ARCHITECTURE.md"
    for imported in internal_imports(path):
        other = level_of(imported, table)
        same_package = "/" in name_of(path) and imported.split("/")[0] == name_of(path).split("/")[0]
        is_listed_whole = name_of(path) not in table
        assert other is not None, f"{imported} is missing in the table"
        assert other < own or (same_package and is_listed_whole), (
            f"{name_of(path)} ({own}) imports {imported} ({other})"
        )


@pytest.mark.parametrize("path", EXTENSIONS, ids=name_of)
def test_extension_imports_only_lower_levels(path):
    """The same for compiled modules."""
    found = re.findall(r"^from edge_appliance\.([\w.]+) import (\w+)", path.read_text(), re.M)
    imported = {f"core/{name}" if module == "core" else module.replace(".", "/") for module, name in found}
    table = levels()
    assert [name for name in imported if table[name] >= table[name_of(path)]] == []


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.name)
def test_compiled_sizes(path):
    """One idea per file there, too."""
    assert len(path.read_text().splitlines()) < MAX_MODULE_LINES


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.name)
def test_compiled_code_has_no_list_comprehension(path):
    """Cython 3.3 frees an item twice when the list it is appended to cannot grow."""
    assert not re.search(r"\[[^\]#]* for [^\]#]* in ", path.read_text())


def test_table_names_no_module_that_is_gone():
    """The table is the package, no more."""
    known = {name_of(path) for path in MODULES + EXTENSIONS}
    packages = {name.split("/")[0] for name in known if "/" in name}
    assert set(levels()) <= known | packages


def test_no_import_goes_in_a_circle():
    """Following imports from any module never leads back to it."""
    graph = {name_of(path): internal_imports(path) for path in MODULES} | {name_of(path): set() for path in EXTENSIONS}

    def reaches(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph[name]
        return seen

    assert [name for name in graph if name in reaches(name)] == []


@pytest.mark.parametrize("path", [p for p in MODULES if "core" in p.parts], ids=name_of)
def test_core_is_pure(path):
    """The core knows no file, socket, thread, clock or logger, and nothing outside the core but the errors."""
    imported = {name.split(".")[0] for name in imports_of(path)}
    assert not imported & IMPURE
    assert all(name.startswith("core/") or name == "errors" for name in internal_imports(path))


@pytest.mark.parametrize("library", ONLY_IMPORTERS)
def test_library_has_one_importer(library):
    """A library is known in one place only, so that it can be replaced and its errors do not spread."""
    for path in MODULES:
        uses = any(name == library or name.startswith(library + ".") for name in imports_of(path))
        assert not uses or name_of(path).split("/")[0] in ONLY_IMPORTERS[library], name_of(path)


def test_only_durable_syncs():
    """Every sync, and what is done when it fails, is in one module."""
    for path in MODULES:
        if name_of(path) != "durable":
            assert not re.search(r"\bos\.f(data)?sync\b", path.read_text()), name_of(path)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_sizes(path):
    """A screen per function, one idea per file."""
    text = path.read_text()
    assert len(text.splitlines()) < MAX_MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            is_a_list = node.name == "__init__" and path.name == "metrics.py"
            assert lines <= MAX_FUNCTION_LINES or is_a_list, f"{node.name} has {lines} lines"


def test_every_metric_is_counted_somewhere():
    """A number that is exported and never counted says that all is well when nobody looks."""
    code = "\n".join(path.read_text() for path in MODULES if name_of(path) != "metrics")
    assert [name for name in vars(Metrics()) if not re.search(rf"metrics\.{name}\b", code)] == []


TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_each_test_states_its_property(path):
    """A test's docstring says what must hold; the code only says how it is seen."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_package_init_files_are_empty():
    """A package is its modules; only the version lives in the top one."""
    for path in PACKAGE.rglob("__init__.py"):
        assert path.parent == PACKAGE or not path.read_text()
