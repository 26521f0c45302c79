"""Matching whole networks, top layer first: `match` for arrays, `match_networks` for methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fedsieve.core import keys
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.options import coerce, in_range
from fedsieve.matching.assign import LayerMatch, match_layer
from fedsieve.matching.atoms import (
    Above,
    Padding,
    Variances,
    class_shares,
    fuse,
    layer_problem,
    output_bias,
    read_networks,
)
from fedsieve.matching.costs import Ints, KlMode, PresetName, Rule
from fedsieve.matching.divergences import Divergence
from fedsieve.matching.result import Matching

PerLayer: TypeAlias = float | Sequence[float]  # for all hidden layers, or one each, bottom first


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters of a matching; `sigma2`, `sigma0_2` are variances."""

    preset: PresetName = "paper"
    sigma2: PerLayer = 1.0
    sigma0_2: PerLayer = 1.0
    gamma0: PerLayer = 1.0
    eps: PerLayer = 0.0
    kl: KlMode = "plugin"
    divergence: Divergence = "kl"
    padding: Padding = "full"
    bias_mean: float = 0.1  # prior mean of biases: the value they start from

    def __post_init__(self) -> None:
        if self.padding not in {"full", "zero"}:
            raise ConfigError(f"matching: padding={self.padding!r}: must be 'full' or 'zero'.")
        for name in ("sigma2", "sigma0_2"):
            for value in np.ravel(getattr(self, name)):
                in_range(f"matching: {name}", float(value), 0, np.inf, above=True, below=True)

    def rules(self, layers: int) -> list[Rule]:
        """The rule of each hidden layer."""
        values = zip(self._each("gamma0", layers), self._each("eps", layers), strict=True)
        return [
            Rule(gamma0=g, eps=e, kl=self.kl, preset=self.preset, divergence=self.divergence)
            for g, e in values
        ]

    def variances(self, layers: int) -> list[Variances]:
        """The variances of each hidden layer."""
        values = self._each("sigma2", layers), self._each("sigma0_2", layers)
        return [Variances(*pair) for pair in zip(*values, strict=True)]

    def _each(self, name: str, layers: int) -> list[float]:
        given: list[float] = np.ravel(getattr(self, name)).astype(float).tolist()
        if len(given) not in {1, layers}:
            raise ConfigError(
                f"matching: {name} has {len(given)} values for {layers} hidden layers: give one "
                "for all, or one for each."
            )
        return given * layers if len(given) == 1 else given


def match(
    clients: Sequence[Sequence[Any]],
    *,
    class_counts: Any,
    preset: PresetName = "paper",
    sigma2: PerLayer = 1.0,
    sigma0_2: PerLayer = 1.0,
    gamma0: PerLayer = 1.0,
    eps: PerLayer = 0.0,
    kl: KlMode = "plugin",
    divergence: Divergence = "kl",
    padding: Padding = "full",
    sweeps: int = 5,
    orders: Sequence[Any] | None = None,
) -> Matching:
    """Match clients' multi-layer perceptrons into one: PFNM, and GPI-FNM with `eps` > 0.

    Args:
        clients: for each client [W0, b0, W1, b1, ...] with W of shape (in, out); hidden widths may
            differ from client to client.
        class_counts: (clients, classes), how many examples of each class a client trained on; None
            gives all clients full weight in every class.
        preset: "paper", or "pfnm-code" for the published program's choices.
        sigma2: variance of a client's neuron around its atom; a number, or one per hidden layer.
        sigma0_2: variance of atoms around the prior mean.
        gamma0: mass of the Beta process: larger values keep more neurons apart.
        eps: weight of the KL term.
        kl: "plugin" keeps PFNM's atoms, "joint" lets the KL term move them as well.
        divergence: what the KL term is made of; see `fedsieve.matching.divergences`.
        padding: whether a weight to a neuron that a client lacks counts as an observed 0 ("full")
            or not at all ("zero").
        sweeps: how often all clients are re-matched; 0 is the greedy pass alone.
        orders: for each hidden layer, bottom first, the clients in the order of re-matching, an
            array (sweeps, clients) that is replayed as it is, whatever `sweeps` is unless 0; drawn
            from a fixed key if None.

    Raises:
        ConfigError: networks do not fit together, or a setting is out of range.
    """
    settings = Settings(
        preset=preset,
        sigma2=sigma2,
        sigma0_2=sigma0_2,
        gamma0=gamma0,
        eps=eps,
        kl=kl,
        divergence=divergence,
        padding=padding,
    )
    coerce(sweeps, int, "matching: sweeps")
    networks = read_networks(clients)
    layers = len(networks[0]) // 2 - 1
    in_range("matching: sweeps", sweeps, 0)
    if orders is None:
        visits = visiting_orders(Key(0), layers, sweeps, len(networks))
    else:
        visits = _read_orders(orders, layers, len(networks))
    if sweeps == 0:
        visits = [order[:0] for order in visits]
    return match_networks(networks, class_counts, settings, visits)


def match_networks(
    clients: Sequence[Sequence[Any]],
    class_counts: Any,
    settings: Settings,
    orders: Sequence[Any],
    *,
    start: Sequence[Sequence[Ints]] | None = None,
    blocks: Sequence[int] = (),
) -> Matching:
    """Match networks layer by layer, top first.

    Args:
        clients: networks as for `match`.
        class_counts: as for `match`.
        settings: the hyper-parameters.
        orders: for each hidden layer an array (sweeps, clients).
        start: labels `[layer][client]` of an earlier matching, in place of the greedy pass.
        blocks: rows of each W that belong to one sending neuron, if not all 1.
    """
    networks = read_networks(clients, blocks)
    layers = len(networks[0]) // 2 - 1
    visits = _read_orders(orders, layers, len(networks))
    shares = class_shares(class_counts, len(networks), len(networks[0][-1]))
    variances, rules = settings.variances(layers), settings.rules(layers)
    above: Above | None = None
    matches: list[LayerMatch] = []
    for layer in reversed(range(layers)):
        problem = layer_problem(
            networks, layer, above, shares, variances[layer], settings.padding, settings.bias_mean
        )
        first = None if start is None else start[layer]
        matched = match_layer(problem, rules[layer], visits[layer], first)
        above = Above(matched.labels, len(matched.means))
        matches.insert(0, matched)
    bias = output_bias(networks, shares, variances[-1], settings.bias_mean)
    means = [layer.means for layer in matches]
    inputs = len(networks[0][0])
    return Matching(
        assignments=[layer.labels for layer in matches],
        global_weights=fuse(means, bias, inputs, blocks or [1] * (layers + 1)),
        layers=matches,
        orders=visits,
        blocks=tuple(blocks) or (1,) * (layers + 1),
    )


def visiting_orders(key: Key, layers: int, sweeps: int, num_clients: int) -> list[Ints]:
    """Random orders for each layer, (sweeps, clients), as functions of the key."""
    in_range("matching: sweeps", sweeps, 0)
    return [
        np.array(
            [
                keys.permutation(fold(key, "order", layer, sweep), num_clients).numpy()
                for sweep in range(sweeps)
            ],
            np.int64,
        ).reshape(sweeps, num_clients)
        for layer in range(layers)
    ]


def _read_orders(orders: Sequence[Any], layers: int, num_clients: int) -> list[Ints]:
    arrays = [np.asarray(order) for order in orders]
    if len(arrays) != layers:
        raise ConfigError(f"matching: {len(arrays)} orders for {layers} hidden layers.")
    for layer, order in enumerate(arrays):
        is_whole = order.size == 0 or np.issubdtype(order.dtype, np.integer)
        if not is_whole or order.ndim != 2 or order.shape[1] != num_clients:
            raise ConfigError(
                f"matching: orders[{layer}] must be whole numbers (sweeps, {num_clients}), found "
                f"{order.dtype} {order.shape}."
            )
        if not (np.sort(order, axis=1) == np.arange(num_clients)).all():
            raise ConfigError(
                f"matching: each row of orders[{layer}] must name the clients 0 to "
                f"{num_clients - 1} once."
            )
    return [order.astype(np.int64) for order in arrays]
