"""Other ways to make one predictor of local networks: what matching is compared with.

Specification neural_matching, section 11.
"""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedsieve.core import keys
from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.matching.atoms import class_shares
from fedsieve.matching.layout import Layout


def uniform_ensemble(outputs: Sequence[Tensor]) -> Tensor:
    """The mean of the networks' class probabilities."""
    return torch.stack([logits.softmax(1) for logits in outputs]).mean(0)


def weighted_ensemble(outputs: Sequence[Tensor], class_counts: Tensor) -> Tensor:
    """Class probabilities, each weighted by the part of the class that its client holds."""
    shares = class_shares(class_counts.numpy(), *class_counts.shape)
    weights = torch.from_numpy(shares).float()
    return sum(
        (f * logits.softmax(1) for f, logits in zip(weights, outputs, strict=True)),
        start=torch.zeros_like(outputs[0]),
    )


def k_means_network(layout: Layout, networks: Sequence[Params], atoms: int, key: Key) -> Params:
    """Centres of all neurons [in, bias, out] as a hidden layer; one hidden layer only."""
    arrays = [layout.network(params) for params in networks]
    neurons = np.vstack([np.hstack([w0.T, b0[:, None], w1]) for w0, b0, w1, _ in arrays])
    model = KMeans(atoms, n_init=1, random_state=keys.torch_seed(key) % 2**32)
    with threadpool_limits(1):
        centres = model.fit(neurons).cluster_centers_
    inputs = len(arrays[0][0])
    bias = np.mean([network[3] for network in arrays], axis=0)
    return layout.params(
        [centres[:, :inputs].T, centres[:, inputs], centres[:, inputs + 1 :], bias]
    )
