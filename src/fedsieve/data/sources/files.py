"""Where data files are looked for, and what is said when one is not there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias

from fedsieve.core.errors import DataError
from fedsieve.core.options import name_of
from fedsieve.data.dataset import Dataset

Paths: TypeAlias = Mapping[str, Path]


class FileSource(Protocol):
    """A data set read from files.

    Attributes:
        layouts: the sets of files it can be read from, each complete in itself.
        origin: the files' public name, for one who has to get them.
    """

    about: ClassVar[str]
    examples: ClassVar[str]
    layouts: ClassVar[tuple[tuple[str, ...], ...]]
    origin: ClassVar[str]

    def load(self, files: Paths) -> Dataset: ...


def folders(root: Path | None) -> tuple[Path, ...]:
    """Folders to search, in order: `root`, else FEDSIEVE_DATA, else ./data."""
    if root is not None:
        return (root,)
    named = os.environ.get("FEDSIEVE_DATA")
    return (Path(named or "data"),)


def is_present(source: type[FileSource], root: Path | None) -> bool:
    """Whether at least one layout of `source` is complete."""
    return any(all(_find(n, root) for n in layout) for layout in source.layouts)


def locate(source: FileSource, root: Path | None) -> dict[str, Path]:
    """Paths of the first complete layout of `source`, by the names the layout gives them.

    Raises:
        DataError: no layout is complete; says which files are missing and where they belong.
    """
    missing = []
    for layout in source.layouts:
        paths = {name: path for name in layout if (path := _find(name, root)) is not None}
        if len(paths) == len(layout):
            return paths
        missing.append(", ".join(name for name in layout if name not in paths))
    looked = ", ".join(str(f.absolute()) for f in folders(root))
    raise DataError(
        f"{name_of(type(source))}: missing {'; or instead '.join(missing)}. Looked in {looked}. "
        f"These are files of {source.origin}: put them there under these names (a .gz may be "
        "unpacked), or point --data-root or FEDSIEVE_DATA at the folder that has them."
    )


def _find(name: str, root: Path | None) -> Path | None:
    for folder in folders(root):
        for path in (folder / name, folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
    return None
