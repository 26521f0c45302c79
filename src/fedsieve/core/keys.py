"""Randomness as data: a key is a 64-bit address, and equal addresses give equal draws everywhere.

A key is folded with a path of words and numbers, `fold(seed, "batches", round, client)`, and draws
come from a Philox counter generator started at that key. (torch's own CPU generator keeps only 32
bits of a seed: two of 65,000 addresses would share a stream more often than not.)
"""

import hashlib
from typing import NewType

import numpy as np
import torch
from torch import Tensor

Key = NewType("Key", int)


def fold(key: int, *path: str | int) -> Key:
    """The key at `path` below `key`; distinct paths give independent keys."""
    parts = [(key & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")]
    for part in path:
        if isinstance(part, str):
            word = part.encode()
            parts.append(b"s" + len(word).to_bytes(4, "little") + word)
        else:
            parts.append(b"i" + int(part).to_bytes(16, "little", signed=True))
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return Key(int.from_bytes(digest, "little"))


def generator(key: Key) -> np.random.Generator:
    """A numpy generator whose whole stream belongs to `key`."""
    return np.random.Generator(np.random.Philox(key=key))


def uniform(key: Key, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """float32 draws from [0, 1)."""
    return torch.from_numpy(generator(key).random(tuple(shape), dtype=np.float32))


def normal(key: Key, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """float32 draws from N(0, 1)."""
    return torch.from_numpy(generator(key).standard_normal(tuple(shape), dtype=np.float32))


def permutation(key: Key, count: int) -> Tensor:
    """A random order of 0 .. count-1."""
    return torch.from_numpy(generator(key).permutation(count))


def sample(key: Key, count: int, size: int) -> list[int]:
    """`size` distinct members of 0 .. count-1 in ascending order."""
    return sorted(generator(key).choice(count, size, replace=False, shuffle=False).tolist())


def torch_seed(key: Key) -> int:
    """A seed for code that draws from torch's global generator (dropout, layer initialisers)."""
    return key & 0x7FFF_FFFF_FFFF_FFFF
