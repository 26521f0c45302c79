"""Names of methods, data sets and models, read from their source: torch takes seconds to import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedsieve
from fedsieve.core.options import snake_case

_ROOT = Path(fedsieve.__file__).parent


def methods() -> dict[str, str]:
    """Every registered method and the first line of its class."""
    lines = {}
    for module in _modules("methods"):
        for cls in _classes(module):
            about = (ast.get_docstring(cls) or "").split("\n", 1)[0]
            for decorator in cls.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name("register"), args=[ast.Constant(str(name))]):
                        lines[name] = about
    return dict(sorted(lines.items()))


def datasets() -> list[str]:
    """Every data set that `fedsieve datasets` lists: they say what they are `about`."""
    return sorted(
        snake_case(cls.name)
        for module in _modules("data")
        for cls in _classes(module)
        if any(
            isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "about" and line.value
            for line in cls.body
        )
    )


def models() -> list[str]:
    """Every architecture: dataclasses that can `build` a module."""
    return sorted(
        snake_case(cls.name)
        for module in _modules("models")
        for cls in _classes(module)
        if cls.decorator_list
        and any(isinstance(line, ast.FunctionDef) and line.name == "build" for line in cls.body)
    )


def _modules(package: str) -> Iterator[ast.Module]:
    for path in sorted((_ROOT / package).rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def _classes(module: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in module.body if isinstance(node, ast.ClassDef))
