"""Trees: nested dicts and (named) tuples with tensors or numbers at the leaves.

A method's Server, State, Down and Up are such trees. Paths join names with "/".
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedsieve.core.message import Params

Leaf: TypeAlias = Tensor | int | float
_LEAVES = (Tensor, int, float)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree of `function(leaf, *leaves of others)`; all trees have the shape of the first."""
    if isinstance(tree, dict):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        parts = [map_leaves(function, *items) for items in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree, *others)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """(path, leaf) pairs in a fixed order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}" if path else key)
    elif isinstance(tree, tuple):
        for key, value in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from leaves(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, tree


def flatten(tree: Any) -> dict[str, Leaf]:
    """The leaves of a tree by path."""
    return dict(leaves(tree))


def rebuild(kind: Any, flat: dict[str, Leaf], path: str = "") -> Any:
    """The inverse of `flatten` for a tree of type `kind` (a NamedTuple class or a type hint)."""
    origin = get_origin(kind)
    if origin is Annotated:
        return rebuild(get_args(kind)[0], flat, path)
    prefix = f"{path}/" if path else ""
    below = [p[len(prefix) :] for p in flat if p.startswith(prefix)]
    if origin is dict and get_args(kind)[1] in _LEAVES:  # its own names may contain slashes
        return {name: flat[prefix + name] for name in below}
    heads = dict.fromkeys(name.split("/")[0] for name in below)
    if origin is dict:
        return {head: rebuild(get_args(kind)[1], flat, prefix + head) for head in heads}
    if origin is tuple:
        kinds = get_args(kind)
        kinds = kinds[:1] * len(heads) if kinds[1:] == (...,) else kinds
        return tuple(rebuild(k, flat, f"{prefix}{i}") for i, k in enumerate(kinds))
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        hints = get_type_hints(kind, include_extras=True)
        return kind(*(rebuild(hints[name], flat, prefix + name) for name in kind._fields))
    return () if kind is tuple else flat[path]


def clone(tree: Any) -> Any:
    """A copy that shares no memory with `tree`."""
    return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def equal(a: Any, b: Any) -> bool:
    """Whether two trees have the same paths and bit-identical leaves (NaN equals itself)."""
    left, right = flatten(a), flatten(b)
    return left.keys() == right.keys() and all(_same(left[p], right[p]) for p in left)


def digest(tree: Any) -> str:
    """A short hash of names, shapes, types and bits: equal trees have equal digests."""
    state = hashlib.blake2b(digest_size=16)
    for path, leaf in sorted(leaves(tree)):
        if isinstance(leaf, Tensor):
            state.update(f"{path}|{tuple(leaf.shape)}|{leaf.dtype}|".encode() + _bits(leaf))
        else:
            state.update(f"{path}|{leaf!r}|".encode())
    return state.hexdigest()


def is_finite(tree: Any, checked: Any = ()) -> bool:
    """Whether no leaf of the tree, except for those of `checked`, is NaN or infinite."""
    known = {id(leaf) for _, leaf in leaves(checked)}
    return all(_is_finite(leaf) for _, leaf in leaves(tree) if id(leaf) not in known)


def size_bytes(tree: Any) -> int:
    """Bytes of all tensors of the tree."""
    return sum(x.numel() * x.element_size() for _, x in leaves(tree) if isinstance(x, Tensor))


def weighted_mean(pairs: Iterable[tuple[Params, float]], by: float | None = None) -> Params:
    """sum_k c_k x_k / sum_k c_k as a running sum: memory does not grow with the number of terms.

    If `by` is given, it is what the sum is divided by. A term without tensors counts as 0.
    """
    total, mean = 0.0, dict[str, Tensor]()
    for params, weight in pairs:
        if mean:
            for name, value in params.items():
                mean[name].add_(value, alpha=weight)
        else:
            mean = {name: value * weight for name, value in params.items()}
        total += weight
    return {name: value.div_(by or total) for name, value in mean.items()}


def stack(trees: Iterable[Params]) -> Params:
    """Parameters of several models along a new first dimension."""
    items = list(trees)
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def unstack(stacked: Params) -> list[Params]:
    """The inverse of `stack`, as views."""
    count = len(next(iter(stacked.values())))
    return [{name: value[i] for name, value in stacked.items()} for i in range(count)]


def subtract(a: Params, b: Params) -> Params:
    """`a - b`, tensor by tensor."""
    return {name: value - b[name] for name, value in a.items()}


def sq_dist(a: Params, b: Params) -> Tensor:
    """Squared Euclidean distance of two models (differentiable)."""
    return torch.stack([(value - b[name]).square().sum() for name, value in a.items()]).sum()


def l1_dist(a: Params, b: Params) -> Tensor:
    """Sum of absolute differences of two models (subgradient 0 where they agree)."""
    return torch.stack([(value - b[name]).abs().sum() for name, value in a.items()]).sum()


def _is_finite(leaf: Leaf) -> bool:
    if not isinstance(leaf, Tensor):
        return math.isfinite(leaf)
    if not leaf.is_floating_point():
        return True
    # A finite sum has finite terms; only an overflowing one needs the slow look.
    return math.isfinite(leaf.sum()) or bool(torch.isfinite(leaf).all())


def _same(a: Leaf, b: Leaf) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    return type(a) is type(b) and repr(a) == repr(b)  # tells -0.0 from 0.0, and nan is itself


def _bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().numpy().tobytes())
