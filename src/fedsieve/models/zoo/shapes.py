"""Input shapes that architectures ask for."""

from fedsieve.core.errors import ModelError


def image(model: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """`input_shape` as (channels, height, width) of at least `smallest` pixels a side."""
    if len(input_shape) != 3:
        raise ModelError(
            f"model {model} needs images of shape (channels, height, width), but inputs have shape "
            f"{input_shape}. Use mlp or linear, which take any shape."
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ModelError(
            f"model {model} needs images of at least {smallest} x {smallest} pixels, but they have "
            f"{height} x {width}. Use conv_small, mlp or linear, or scale the images up."
        )
    return channels, height, width
