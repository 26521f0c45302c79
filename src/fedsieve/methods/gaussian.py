"""A Gaussian over every weight, fitted step by step: what a device of `vardrop` does by itself.

Paper    "Efficient federated learning via variational dropout", 2018; Molchanov et al.,
         "Variational Dropout Sparsifies Deep Neural Networks", ICML 2017.
Symbols  theta -> weights   log sigma^2 -> log_variance   log T -> log_threshold   kappa ->
         kl_weight and ramp   N_eff -> bound.examples
Differs  the paper leaves T, rates, schedules and the weight of the KL term open (specification
         variational_dropout, sections 2, 3 and 11). Biases and normalisation are plain numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsieve.core.keys import Key
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Batch, Task
from fedsieve.core.options import in_range
from fedsieve.inference import variational
from fedsieve.inference.variational import Posterior
from fedsieve.optim import local, optimisers
from fedsieve.optim.local import Trained
from fedsieve.optim.optimisers import SGD, Adam, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule


class Model(NamedTuple):
    posterior: Posterior
    moments: tuple[Moments, Moments]  # of the optimisers of weights and log-variances

    def with_weights(self, changed: Params) -> "Model":
        """The model with some weights or statistics replaced."""
        weights = self.posterior.weights | changed
        return self._replace(posterior=self.posterior._replace(weights=weights))

    def afresh(self) -> "Model":
        """The model with the moments of its weights forgotten."""
        zeros = {slot: torch.zeros_like(moment) for slot, moment in self.moments[0].items()}
        return self._replace(moments=(zeros, self.moments[1]))


class Bound(NamedTuple):
    """What the bound depends on besides the posterior."""

    rounds: int  # done so far
    examples: int  # N_eff, of all devices; 0 while it is not known
    mask: Mask  # of weights in forward passes; {}: all


@dataclass(frozen=True, kw_only=True)
class GaussianFit:
    """Dense warm-up, then descent on the negative bound with a KL term that grows."""

    task: Task
    log_threshold: float = 3.0  # log T: a weight with a larger log alpha is masked
    log_variance: float = -10.0  # at the start
    log_variance_spread: float = 0.0  # its standard deviation over weights at the start
    warmup: int | None = None  # rounds of dense training before there is noise; none: a fifth
    ramp: int | None = None  # rounds after these until the KL term is whole; none: a fifth
    kl_weight: float = 0.1  # kappa after the ramp; the bound: 1
    clip_training: bool = False  # masked weights are left out of forward passes in training too
    lr: float = 1.0  # of weights
    clip_norm: float | None = 1.0  # largest norm of a gradient of weights
    variance_lr: float | None = None  # of log-variances in a round; none: 30 by rounds of the run
    schedule: Schedule = Cosine(floor=0.02)  # of both rates, over rounds
    optimiser: Optimiser = SGD()  # of weights
    variance_optimiser: Optimiser = Adam()  # of log-variances

    def __post_init__(self) -> None:
        for name in ("warmup", "kl_weight", "log_variance_spread"):
            in_range(f"vardrop: {name}", getattr(self, name) or 0, 0)
        for name in ("ramp", "lr", "variance_lr", "clip_norm"):
            if getattr(self, name) is not None:
                in_range(f"vardrop: {name}", getattr(self, name), 0, above=True)

    def start(self, key: Key) -> Model:
        at = variational.start(self.task, key, self.log_variance, self.log_variance_spread)
        return Model(at, self.first_moments(at))

    def first_moments(self, at: Posterior) -> tuple[Moments, Moments]:
        trainable = {n: w for n, w in at.weights.items() if n not in self.task.buffers}
        first = optimisers.init_moments(self.optimiser, trainable)
        return first, optimisers.init_moments(self.variance_optimiser, at.log_variance)

    @property
    def _optimisers(self) -> tuple[Optimiser, Optimiser]:
        """Of weights and of log-variances: decay to 0 would make these large."""
        return self.optimiser, optimisers.undecayed(self.variance_optimiser)

    def mask(self, model: Model, rounds: int) -> Mask:
        """Where log alpha <= log T; none in the warm-up, in which every weight is kept."""
        is_early = rounds < (self.warmup or 0)
        return {} if is_early else variational.kept(model.posterior, self.log_threshold)

    def gradient(
        self, model: Model, batch: Batch, bound: Bound, key: Key
    ) -> tuple[Posterior, float]:
        """Gradients of the bound at one mini-batch, what statistics lost in it, and the bound."""
        at, fixed = self.learned(model, bound.rounds), self.task.buffers
        return local.gradient(self._objective(bound), at, batch, key=key, fixed=fixed)

    def train(
        self, model: Model, batches: Sequence[Batch], bound: Bound, key: Key
    ) -> Trained[Posterior]:
        """Steps along the gradients of the bound at one mini-batch after the other."""
        at = self.learned(model, bound.rounds)
        return local.train(
            self._objective(bound),
            at,
            batches,
            (self._optimisers[0], self._optimisers[1] if at.log_variance else None),
            lr=self._rates(bound.rounds, len(batches)),
            key=key,
            fixed=self.task.buffers,
            clip_norm=(self.clip_norm, None),
            moments=model.moments,
        )

    def descend(
        self, model: Model, grads: Posterior, rounds: int, present: Mask | None = None
    ) -> Model:
        """One optimiser step on whatever has a gradient; see `optimisers.update` for `present`."""
        parts, moments = list(model.posterior), list(model.moments)
        for i, (mine, lr) in enumerate(zip(grads, self._rates(rounds), strict=True)):
            if mine:
                params: Params = {n: parts[i][n] for n in mine}
                moved, moments[i] = optimisers.update(
                    self._optimisers[i], params, mine, moments[i], lr, present
                )
                parts[i] = parts[i] | moved
        return Model(Posterior(*parts), (moments[0], moments[1]))

    def _objective(self, bound: Bound) -> Callable[[Posterior, Batch, Key], Tensor]:
        """L_i of section 3; there is no KL term before it is known over how many examples."""
        done = bound.rounds - (self.warmup or 0)
        kappa = self.kl_weight * min(done / (self.ramp or 1), 1.0)
        scale = kappa / bound.examples if bound.examples else 0.0

        def objective(at: Posterior, batch: Batch, key: Key) -> Tensor:
            return variational.bound(self.task, at, batch, key, scale, bound.mask)

        return objective

    def learned(self, model: Model, rounds: int) -> Posterior:
        """What is fitted: in the warm-up weights alone, which then have no noise."""
        weights, log_variance = model.posterior
        return Posterior(weights, {} if rounds < (self.warmup or 0) else log_variance)

    def _rates(self, rounds: int, steps: int = 1) -> tuple[float, float]:
        factor = self.schedule.factor(rounds)
        return self.lr * factor, (self.variance_lr or 0.01) * factor / steps
