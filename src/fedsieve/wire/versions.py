"""Values that both ends hold, named by hash: versions of a broadcast, and a client's last change.

Versions are rounded to a lattice by the server. A change is what a client's reply has changed as it
arrived, which both ends can tell.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from fedsieve.core.message import Kept, Params, Whole, fields
from fedsieve.wire.compressors.lattice import Lattice
from fedsieve.wire.frame import NAME_BYTES
from fedsieve.wire.schema import Entry, Hash, Part, Schema, schema_of
from fedsieve.wire.tensors import has_like

Floats: TypeAlias = NDArray[np.float32]
VERSIONS: Final = 2 ** (8 * NAME_BYTES)  # their names begin here, where those of masks end
CHANGES: Final = 2 * VERSIONS  # and here those of changes


def version_of(message: Any) -> dict[Hash, Floats]:
    """The values of a message that may be rounded, one after another, by name."""
    schema, digest = schema_of(message)
    arrays = [
        getattr(message, part.name)[entry.name].detach().numpy().reshape(-1)
        for part, entry in _entries(schema)
    ]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    return {VERSIONS + _digest(flat, digest): flat}


def change_of(message: Any, answered: Any) -> dict[Hash, Floats]:
    """What a reply, as it arrived, changes in the broadcast it answers, by name; 0 if unsent."""
    schema, digest = schema_of(message)
    roles, arrays = _roles(type(message)), list[Floats]()
    for part, entry in _entries(schema):
        role, change = roles[part.name], getattr(message, part.name)[entry.name]
        base = base_of(part.name, role, answered)
        if has_like(base, entry):
            change = change - base[entry.name]
        if isinstance(role, Kept) and entry.name in (mask := getattr(message, role.where)):
            change = change.where(mask[entry.name], 0)
        arrays.append((change + 0).detach().numpy().reshape(-1))  # no -0
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    return {CHANGES + _digest(flat, digest): flat}


def is_change_of(name: Hash, flat: Floats, message: Any) -> bool:
    """Whether these are the changes of a message of the same tensors."""
    return name >= CHANGES and bool(name == CHANGES + _digest(flat, schema_of(message)[1]))


def base_of(name: str, role: Whole | Kept, answered: Any) -> Params:
    """The tensors of a broadcast to which a reply's field of that name has differences."""
    return {} if role.is_change else getattr(answered, name, {})


def _roles(kind: type) -> dict[str, Whole | Kept]:
    return {name: role for name, role in fields(kind) if isinstance(role, Whole | Kept)}


def _digest(flat: Floats, digest: Hash) -> Hash:
    return xxhash.xxh3_64_intdigest(flat.data, seed=digest) >> 8 * (8 - NAME_BYTES)


def bases_of(kind: type, answered: Any, schema: Schema, change: Floats | None) -> dict[str, Params]:
    """Tensors by field to which a message has differences: the broadcast's plus a change."""
    bases = {name: base_of(name, role, answered) for name, role in _roles(kind).items()}
    changes = None if change is None else as_message(schema, change)
    for part, entry in _entries(schema) if changes is not None else ():
        base, step = bases[part.name], getattr(changes, part.name)[entry.name]
        there = base[entry.name] + step if has_like(base, entry) else step
        bases[part.name] = {**base, entry.name: there}
    return bases


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
        # Adding 0 makes 0 of -0, which a receiver reads as 0: names are of bits.
        rounded = torch.from_numpy(lattice.rounded(tensor.detach().numpy(), before)) + 0
        rounded = rounded if mask is None else rounded.where(mask, 0)
        values[part.name] = values[part.name] | {entry.name: rounded}
    return type(message)(**values)


def _entries(schema: Schema) -> Iterator[tuple[Part, Entry]]:
    """The tensors of a message whose values may be rounded."""
    for part in schema.parts:
        if part.role == "dense" or part.role.startswith("kept:"):
            yield from ((part, entry) for entry in part.entries if entry.dtype == "f4")
