"""A data set in memory: compact arrays and the rule that turns them into model inputs."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from fedsieve.core.errors import DataError
from fedsieve.data import InputScale

Kind: TypeAlias = Literal["classes", "binary", "labels", "values"]
Layout: TypeAlias = Literal["images", "rows", "tokens"]
PerChannel: TypeAlias = float | tuple[float, ...]


class Affine(NamedTuple):
    """Model input = stored value * scale + shift."""

    scale: PerChannel
    shift: PerChannel


_DIMENSIONS = {"images": 4, "rows": 2, "tokens": 2}
_STORED = {
    "images": (torch.uint8, torch.float32),
    "rows": (torch.float32,),
    "tokens": (torch.int64,),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples and targets for training and testing.

    Attributes:
        x: what is stored: images (N, H, W, C) as uint8 or float32, rows (N, F) as float32, or
            windows of token numbers (N, T) as int64, all below `num_outputs` (the vocabulary).
        y: int64 classes (N,) or 0/1 (N,) for one binary output, float32 labels 0/1
            (N, num_outputs), or float32 values (N,).
        scale: the model sees x * scale + shift; one number, or one for each channel.
        owners: the natural client of each training example, if there is one.
        truth: planted weights (F, num_outputs) of synthetic data.
        scores: noisy outputs of `truth` on `x`, of which `label` makes `y`; a shift of the inputs
            moves them too.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    kind: Kind
    num_outputs: int
    layout: Layout
    scale: PerChannel = 1.0
    shift: PerChannel = 0.0
    owners: Tensor | None = None
    owners_test: Tensor | None = None
    truth: Tensor | None = None
    scores: Tensor | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one model input: (C, H, W), (F,) or (T,)."""
        if self.layout == "images":
            height, width, channels = self.x.shape[1:]
            return channels, height, width
        return tuple(self.x.shape[1:])

    @property
    def num_classes(self) -> int:
        """Groups by which an example may be dealt: classes, or yes and no."""
        return 2 if self.kind == "binary" else self.num_outputs

    def inputs(self, x: Tensor) -> Tensor:
        """Model inputs for stored examples `x`; images become NCHW in channels-last memory."""
        if self.layout == "tokens":
            return x
        if self._affine is None:
            values = x if x.dtype is torch.float32 else x.to(torch.float32)
        else:
            scale, shift = self._affine
            values = x.to(torch.float32, copy=True).mul_(scale).add_(shift)
        return values.permute(0, 3, 1, 2) if self.layout == "images" else values

    def scaled(self, how: InputScale) -> "Dataset":
        """The same images with the largest stored value at 1 (unit) or 255 (raw255), and 0 at 0."""
        if how == "standard":
            return self
        if self.layout != "images":
            self._fail(f"input_scale={how!r} is for images, these are {self.layout}; leave it out")
        top = float(self.x.max()) or 1.0
        return replace(self, scale=(255.0 if how == "raw255" else 1.0) / top, shift=0.0)

    def label(self, scores: Tensor) -> Tensor:
        """Targets for outputs (N, num_outputs) of a planted truth."""
        if self.kind == "classes":
            return scores.argmax(1)
        if self.kind == "binary":
            return (scores[:, 0] > 0).to(torch.int64)
        return (scores > 0).to(torch.float32) if self.kind == "labels" else scores[:, 0]

    def check(self) -> None:
        """Raise DataError naming the array, the index and the rule if anything is malformed."""
        for name, options, value in (
            ("kind", get_args(Kind), self.kind),
            ("layout", get_args(Layout), self.layout),
        ):
            if value not in options:
                raise DataError(f"{self.name}: {name}={value!r}: must be one of {options}.")
        self._check_part("x", self.x, "y", self.y)
        self._check_part("x_test", self.x_test, "y_test", self.y_test)
        if self.x.shape[1:] != self.x_test.shape[1:] or self.x.dtype != self.x_test.dtype:
            self._fail(
                f"x_test holds {self.x_test.dtype} {tuple(self.x_test.shape[1:])}, "
                f"x holds {self.x.dtype} {tuple(self.x.shape[1:])}; they must be alike"
            )
        for name, numbers in (("scale", self.scale), ("shift", self.shift)):
            if isinstance(numbers, tuple) and len(numbers) != self.x.shape[-1]:
                self._fail(f"{name} has {len(numbers)} numbers for {self.x.shape[-1]} channels")
        for name, owners, y in (
            ("owners", self.owners, self.y),
            ("owners_test", self.owners_test, self.y_test),
        ):
            if owners is not None:
                if owners.dtype != torch.int64 or owners.shape != y.shape[:1]:
                    self._fail(f"{name} must be int64 ({len(y)},), found {_form(owners)}")
                self._refuse(name, owners, owners < 0, "client numbers start at 0")

    @cached_property
    def _affine(self) -> tuple[float | Tensor, float | Tensor] | None:
        if self.scale == 1.0 and self.shift == 0.0:
            return None
        return self._spread(self.scale), self._spread(self.shift)

    def _spread(self, value: PerChannel) -> float | Tensor:
        if isinstance(value, float | int):
            return value
        # One number for each pixel: broadcasting along three channels costs five times as much.
        return torch.tensor(value).expand(self.x.shape[1:]).contiguous()

    def _check_part(self, x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
        if x.ndim != _DIMENSIONS[self.layout] or x.dtype not in _STORED[self.layout]:
            kinds = " or ".join(str(t) for t in _STORED[self.layout])
            self._fail(
                f"{x_name} with layout {self.layout!r} must have {_DIMENSIONS[self.layout]} "
                f"dimensions of {kinds}, found {_form(x)}"
            )
        if x.numel() == 0:
            self._fail(f"{x_name} is empty, shape {tuple(x.shape)}")
        if len(x) != len(y):
            self._fail(f"{x_name} has {len(x)} examples, {y_name} has {len(y)}")
        if x.is_floating_point():
            self._refuse(x_name, x, ~x.isfinite(), "inputs must be finite")
        if self.layout == "tokens":
            rule = f"tokens must lie in 0..{self.num_outputs - 1}"
            self._refuse(x_name, x, (x < 0) | (x >= self.num_outputs), rule)
        self._check_targets(y_name, y)

    def _check_targets(self, name: str, y: Tensor) -> None:
        shape = (len(y), self.num_outputs) if self.kind == "labels" else (len(y),)
        dtype = torch.int64 if self.kind in {"classes", "binary"} else torch.float32
        if y.dtype != dtype or tuple(y.shape) != shape:
            self._fail(f"{name} of kind {self.kind!r} must be {dtype} {shape}, found {_form(y)}")
        if self.kind == "classes":
            rule = f"classes must lie in 0..{self.num_outputs - 1}"
            self._refuse(name, y, (y < 0) | (y >= self.num_outputs), rule)
        elif self.kind in {"binary", "labels"}:
            self._refuse(name, y, (y != 0) & (y != 1), "labels must be 0 or 1")
        else:
            self._refuse(name, y, ~y.isfinite(), "values must be finite")

    def _refuse(self, name: str, array: Tensor, bad: Tensor, rule: str) -> None:
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            place = ", ".join(str(i) for i in at)
            self._fail(f"{name}[{place}] is {array[at].item()}; {rule}")

    def _fail(self, message: str) -> None:
        raise DataError(f"{self.name}: {message}.")


def standardise(mean: tuple[float, ...], std: tuple[float, ...], top: float = 255) -> Affine:
    """The map to mean 0 and deviation 1 of pixels 0..top, from those of pixels / top."""
    scale = tuple(1 / (top * s) for s in std)
    shift = tuple(-m / s for m, s in zip(mean, std, strict=True))
    return Affine(scale, shift) if len(scale) > 1 else Affine(scale[0], shift[0])


def _form(array: Tensor) -> str:
    return f"{array.dtype} {tuple(array.shape)}"
