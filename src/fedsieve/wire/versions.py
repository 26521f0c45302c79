"""Versions of a broadcast: rounded to a lattice by the server, held by clients, named by hash."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from fedsieve.core.message import Kept, Params, fields
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.frame import NAME_BYTES
from fedsieve.wire.schema import Entry, Hash, Part, Schema, schema_of

Floats: TypeAlias = NDArray[np.float32]
VERSIONS: Final = 2 ** (8 * NAME_BYTES)  # their names begin here, where those of masks end


def version_of(message: Any) -> dict[Hash, Floats]:
    """The values of a message that may be rounded, one after another, by name."""
    schema, mark = schema_of(message)
    arrays = [
        getattr(message, part.name)[entry.name].detach().numpy().reshape(-1)
        for part, entry in _entries(schema)
    ]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    return {VERSIONS + (xxhash.xxh3_64_intdigest(flat.data, seed=mark) >> 8): flat}


def count_of(schema: Schema) -> int:
    """How many values a version of such a message has."""
    return sum(entry.count for _, entry in _entries(schema))


def as_message(schema: Schema, flat: Floats) -> Any:
    """A version as a message: its tensors by field."""
    values: dict[str, Params] = {}
    at = 0
    for part, entry in _entries(schema):
        tensor = torch.from_numpy(flat[at : at + entry.count]).view(entry.shape)
        values.setdefault(part.name, {})[entry.name] = tensor
        at += entry.count
    return SimpleNamespace(**values)


def next_version(message: Any, version: Floats | None, lattice: Lattice) -> Any:
    """The message with its values rounded to those that follow `version`."""
    schema, _ = schema_of(message)
    held = None if version is None or version.size != count_of(schema) else version
    base = None if held is None else as_message(schema, held)
    values = message._asdict()
    roles = dict(fields(type(message)))
    for part, entry in _entries(schema):
        role, tensor = roles[part.name], values[part.name][entry.name]
        mask = getattr(message, role.where).get(entry.name) if isinstance(role, Kept) else None
        last = None if base is None else getattr(base, part.name)[entry.name]
        if last is not None and mask is not None:
            last = last.where(mask, 0)  # what is pruned is new to nobody
        before = None if last is None else last.numpy()
        rounded = torch.from_numpy(lattice.rounded(tensor.detach().numpy(), before))
        rounded = rounded if mask is None else rounded.where(mask, 0)
        values[part.name] = values[part.name] | {entry.name: rounded}
    return type(message)(**values)


def _entries(schema: Schema) -> Iterator[tuple[Part, Entry]]:
    """The tensors of a message whose values may be rounded."""
    for part in schema.parts:
        if part.role == "dense" or part.role.startswith("kept:"):
            yield from ((part, entry) for entry in part.entries if entry.dtype == "f4")
