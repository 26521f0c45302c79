"""Divergences between an atom's prior N(m0, 1/lam0) and its client's view N(theta, 1/lam_s).

Each is, up to constants without labels, half of k_s (theta - m0)^2 per coordinate with a stiffness
k_s of the two precisions. A penalty of this form keeps every cost exact, both with the posterior
mean plugged in and minimised jointly over theta, and keeps it at two matrix products. Bounded
divergences (Hellinger, total variation) are not quadratic in theta and have no such form.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Divergence: TypeAlias = Literal["kl", "reverse_kl", "jeffreys", "bhattacharyya", "wasserstein"]
Array: TypeAlias = NDArray[np.float64]


def kl(_: Array, client: Array) -> Array:
    """KL(prior || client), equation (10) of GPI-FNM."""
    return client


def reverse_kl(prior: Array, client: Array) -> Array:
    """KL(client || prior)."""
    return np.broadcast_to(prior, client.shape)


def jeffreys(prior: Array, client: Array) -> Array:
    """The mean of both directions of KL."""
    return (prior + client) / 2


def bhattacharyya(prior: Array, client: Array) -> Array:
    """Twice the Bhattacharyya distance, which is the Renyi divergence of order 1/2."""
    total = prior + client
    return prior * client / total


def wasserstein(_: Array, client: Array) -> Array:
    """Half of the squared Wasserstein-2 distance: the plain distance of the means."""
    return np.ones_like(client)


DIVERGENCES: dict[Divergence, Callable[[Array, Array], Array]] = {
    "kl": kl,
    "reverse_kl": reverse_kl,
    "jeffreys": jeffreys,
    "bhattacharyya": bhattacharyya,
    "wasserstein": wasserstein,
}
