"""Networks as atoms: which weights of a neuron are matched, with what precision, and back.

A network is [W0, b0, W1, b1, ..., WL, bL] with W of shape (in, out). The rows of W that one sending
neuron owns are a block: one row in a perceptron, kernel or map positions for a channel of a
convolutional network (specification neural_matching, sections 7 and 8).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fedsieve.core.errors import ConfigError
from fedsieve.matching.costs import Floats, Ints, Problem, problem_of

Network: TypeAlias = list[Floats]
Padding: TypeAlias = Literal["full", "zero"]


class Above(NamedTuple):
    """The layer above, already matched: its labels by client and how many atoms it has."""

    labels: list[Ints]
    size: int


class Variances(NamedTuple):
    """Of one layer: of a client's neuron around its atom, and of atoms around the prior mean."""

    sigma2: float
    sigma0_2: float


def read_networks(clients: Sequence[Sequence[object]], blocks: Sequence[int] = ()) -> list[Network]:
    """Clients' networks as float64 arrays, checked to be matchable with one another.

    Raises:
        ConfigError: none is given, shapes do not fit together, or a weight is not finite.
    """
    if not len(clients):
        raise ConfigError("matching: there are no clients.")
    networks = [[_read(x, c) for x in client] for c, client in enumerate(clients)]
    for client, network in enumerate(networks):
        where = f"matching: client {client}"
        if len(network) < 4 or len(network) % 2:
            raise ConfigError(
                f"{where}: expected [W0, b0, W1, b1, ...] with at least one hidden layer, "
                f"found {len(network)} arrays."
            )
        ends = [(len(x), x[0].shape[:1], x[-1].shape) for x in (network, networks[0])]
        if ends[0] != ends[1]:
            raise ConfigError(
                f"{where}: inputs, classes or depth differ from those of client 0: "
                f"{[x.shape for x in network]} against {[x.shape for x in networks[0]]}."
            )
        width = network[0].shape[0] if network[0].ndim else 0
        for layer, (weight, bias) in enumerate(zip(network[::2], network[1::2], strict=True)):
            rows = width * (blocks[layer] if layer and blocks else 1)
            if weight.ndim != 2 or bias.shape != weight.shape[1:] or len(weight) != rows:
                raise ConfigError(
                    f"{where}: W{layer} of shape {weight.shape} and b{layer} of {bias.shape} do "
                    f"not fit: W needs {rows} rows and b as many values as W has columns. Weights "
                    "of torch are transposed: W = weight.T."
                )
            width = len(bias)
            if not (width and np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise ConfigError(f"{where}: W{layer} or b{layer} is empty or not finite.")
    return networks


def class_shares(counts: object, num_clients: int, num_classes: int) -> Floats:
    """f_sk: of each class, the part that each client holds; 1 everywhere without counts."""
    if counts is None:
        return np.ones((num_clients, num_classes))
    numbers = np.asarray(counts, np.float64)
    if numbers.shape != (num_clients, num_classes) or not (numbers >= 0).all():
        raise ConfigError(
            f"matching: class_counts must be ({num_clients}, {num_classes}) numbers >= 0, found "
            f"{numbers.shape} from {numbers.min(initial=0)} on."
        )
    total = numbers.sum(0)
    if not np.isfinite(total).all():
        raise ConfigError("matching: class_counts must be finite.")
    return np.where(total > 0, numbers / np.where(total > 0, total, 1), 1 / num_clients)


def layer_problem(
    networks: list[Network],
    layer: int,
    above: Above | None,
    shares: Floats,
    variances: Variances,
    padding: Padding,
    bias_mean: float,
) -> Problem:
    """The neurons of hidden layer `layer` (0: the bottom one) as atoms: [incoming,] bias, outgoing.

    Incoming weights count in the bottom layer alone. Outgoing ones stand in the columns that the
    labels of the layer `above` give them; None above is the output, whose columns have the classes'
    shares as precision.
    """
    incoming = len(networks[0][0]) if layer == 0 else 0
    neurons, precisions = [], []
    for client, network in enumerate(networks):
        outgoing = _blocks(network, layer)
        if above is None:
            present = shares[client]
        else:
            columns = above.labels[client]
            padded = np.zeros((*outgoing.shape[:2], above.size))
            padded[:, :, columns] = outgoing
            outgoing = padded
            present = np.full(above.size, 1.0 if padding == "full" else 0.0)
            present[columns] = 1
        head = [network[0].T] if incoming else []
        flat = outgoing.reshape(len(outgoing), -1)
        neurons.append(np.hstack([*head, network[2 * layer + 1][:, None], flat]))
        precisions.append(
            np.concatenate([np.ones(incoming + 1), np.tile(present, outgoing.shape[1])])
        )
    precision = np.array(precisions) / variances.sigma2
    mean = np.zeros(precision.shape[1])
    mean[incoming] = bias_mean
    return problem_of(neurons, precision, mean, np.full(len(mean), 1 / variances.sigma0_2))


def output_bias(
    networks: list[Network], shares: Floats, variances: Variances, bias_mean: float
) -> Floats:
    """The bias of the classes, which is not matched: its posterior mean."""
    evidence, prior = shares / variances.sigma2, 1 / variances.sigma0_2
    biases = np.array([network[-1] for network in networks])
    mean: Floats = ((evidence * biases).sum(0) + bias_mean * prior) / (prior + evidence.sum(0))
    return mean


def fuse(means: list[Floats], bias: Floats, inputs: int, blocks: Sequence[int]) -> Network:
    """The global network of all layers' atoms, bottom first."""
    network = [means[0][:, :inputs].T.copy(), means[0][:, inputs].copy()]
    for layer, atoms in enumerate(means):
        outgoing = atoms[:, (inputs if layer == 0 else 0) + 1 :]
        network.append(outgoing.reshape(len(atoms) * blocks[layer + 1], -1).copy())
        network.append(bias if layer + 1 == len(means) else means[layer + 1][:, 0].copy())
    return network


def subnetwork(
    network: Sequence[Floats], labels: Sequence[Ints], blocks: Sequence[int] = ()
) -> Network:
    """The part of a global network that a client's labels (one array for each layer) name."""
    part = []
    rows = np.arange(len(network[0]))
    for layer, (weight, bias) in enumerate(zip(network[::2], network[1::2], strict=True)):
        columns = labels[layer] if layer < len(labels) else np.arange(len(bias))
        part += [weight[np.ix_(rows, columns)], bias[columns]]
        if layer < len(labels):
            block = blocks[layer + 1] if blocks else 1
            rows = (columns[:, None] * block + np.arange(block)).ravel()
    return part


def _blocks(network: Network, layer: int) -> Floats:
    """Outgoing weights of each neuron: (neurons, rows of its block, receivers)."""
    weight, neurons = network[2 * layer + 2], len(network[2 * layer + 1])
    return weight.reshape(neurons, -1, weight.shape[1])


def _read(array: object, client: int) -> Floats:
    try:
        return np.asarray(array).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"matching: client {client}: a weight or bias is no array of real numbers: {error}."
        ) from error
