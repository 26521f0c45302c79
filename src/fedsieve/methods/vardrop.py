"""Variational dropout: weights whose noise drowns their signal are neither sent nor kept.

Paper    "Efficient federated learning via variational dropout", 2018: Algorithm 1 (`share_alpha`)
         and the variant behind its tables, in which log-variances stay on the devices
         (specification variational_dropout, sections 4 and 5). The noise: Molchanov et al.,
         "Variational Dropout Sparsifies Deep Neural Networks", ICML 2017.
Symbols  theta -> weights   log sigma^2 -> log_variance   M_i -> up.mask   N -> devices   log T ->
         log_threshold   kappa -> kl_weight and ramp   N_eff -> bound.examples
Differs  by default a round is local training: the cohort is sent the posterior where its signal is
         not drowned, trains it for the job's steps and sends back what it changed; the server
         averages by precision. Preset `paper` exchanges gradients at every step of all devices.
         There a device that missed a round is sent the model, and statistics of BatchNorm stay on
         devices, of which the server has the mean. The paper leaves T, rates, schedules and the
         weight of the KL term open (sections 2, 3 and 11). Biases and normalisation are plain
         numbers. `local_steps` and `async_staleness` > 0 go beyond the paper.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from fedsieve.core import keys, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Exact, Examples, Kept, Mask, Params, Sender
from fedsieve.core.method import (
    EVERYONE,
    Batch,
    Batches,
    Cohort,
    Method,
    Metrics,
    PerClient,
    Round,
    Task,
    register,
)
from fedsieve.core.options import in_range, option
from fedsieve.inference import variational
from fedsieve.inference.variational import Posterior
from fedsieve.optim import local, optimisers
from fedsieve.optim.local import Trained
from fedsieve.optim.optimisers import SGD, Adam, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import masks


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


class Elbo(NamedTuple):
    """What the bound depends on besides the posterior."""

    rounds: int  # done so far
    examples: int  # N_eff, of all devices; 0 while it is not known
    mask: Mask  # of weights in forward passes; {}: all


class Parcel(NamedTuple):
    """Gradients; with several local steps, what weights and log-variances have lost."""

    mask: Mask
    content: Posterior


NOTHING = Parcel({}, Posterior({}, {}))
BLANK = Model(Posterior({}, {}), ({}, {}))
PAPER = {
    "share_alpha": False,
    "local_steps": 1,
    "log_variance": -8.0,
    "warmup": 0,
    "ramp": 100,
    "variance_lr": 0.01,
    "schedule": "constant",
    "optimiser": "adam",
    "lr": 1e-3,
    "clip_norm": None,
    "kl_weight": 1.0,
}


class Server(NamedTuple):
    model: Model  # as all devices have it; without log-variances, unless these are shared
    parcel: Parcel  # the last round's sum over devices by their number, where anyone sent
    kept: Mask  # what most devices keep
    heard: dict[str, Mask]  # the last mask of each device, where not all are heard in a round
    devices: Tensor  # that took part in the last round
    examples: int
    rounds: int


class State(NamedTuple):
    model: Model
    parcel: Parcel  # on its way
    arrival: int  # the round in which it arrives
    device: int


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    log_variance: Annotated[Params, Kept(where="mask")]
    model: Exact  # for a device that missed a round; else empty
    examples: Count  # 0 before the first reply
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask", is_change=True)]
    log_variance: Annotated[Params, Kept(where="mask", is_change=True)]
    statistics: Exact  # of normalisation layers
    examples: Examples
    device: Sender


@register("vardrop")
@dataclass(frozen=True, kw_only=True)
class VarDrop(Method[Server, State, Down, Up]):
    """Variational dropout: one quantity, noise over signal, sparsifies model and traffic."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    log_threshold: float = option(3.0, "log T: a weight with a larger log alpha is masked")
    log_variance: float = option(-10.0, "at the start")
    log_variance_spread: float = option(0.0, "its standard deviation over weights at the start")
    warmup: int | None = option(
        None, "rounds of dense training before there is noise; none: a fifth"
    )
    ramp: int | None = option(None, "rounds after these until the KL term is whole; none: a fifth")
    kl_weight: float = option(0.1, "kappa after the ramp; the bound: 1")
    clip_training: bool = option(
        False, "masked weights are left out of forward passes in training too"
    )
    lr: float = option(1.0, "of weights")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of weights")
    variance_lr: float | None = option(
        None, "of log-variances in a round; none: 30 by rounds of the run"
    )
    schedule: Schedule = option(Cosine(floor=0.02), "of both rates, over rounds")
    optimiser: Optimiser = option(SGD(), "of weights")
    variance_optimiser: Optimiser = option(Adam(), "of log-variances")
    share_alpha: bool = option(
        True, "log-variances are exchanged like weights, not each device's own"
    )
    local_steps: int | None = option(None, "in a round; none: the job's; 1: exchange of gradients")
    async_staleness: int = option(
        0, "what a device sends takes up to so many rounds, drawn each time"
    )

    def __post_init__(self) -> None:
        for name in ("warmup", "kl_weight", "log_variance_spread"):
            in_range(f"vardrop: {name}", getattr(self, name) or 0, 0)
        for name in ("ramp", "lr", "variance_lr", "clip_norm"):
            if getattr(self, name) is not None:
                in_range(f"vardrop: {name}", getattr(self, name), 0, above=True)
        in_range("vardrop: local_steps", 1 if self.local_steps is None else self.local_steps, 1)
        in_range("vardrop: async_staleness", self.async_staleness, 0)

    def in_run(self, rounds: int) -> Self:
        warmup = rounds // 5 if self.warmup is None else self.warmup
        ramp = max(rounds // 5, 1) if self.ramp is None else self.ramp
        if warmup < rounds < warmup + ramp:
            warnings.warn(
                f"vardrop: warm-up and ramp take {warmup} + {ramp} rounds and the run has {rounds}:"
                " little will be pruned. Lower warmup and ramp or ask for more rounds.",
                stacklevel=2,
            )
        variance_lr = 30 / rounds if self.variance_lr is None else self.variance_lr
        return replace(super().in_run(rounds), warmup=warmup, ramp=ramp, variance_lr=variance_lr)

    @property
    def is_averaging(self) -> bool:
        """Whether devices are sent the whole posterior and keep nothing, as in FedAvg."""
        return self.share_alpha and self.local_steps != 1

    def init_server(self, key: Key) -> Server:
        model = self.start(key)
        kept = {n: torch.ones_like(lv, dtype=torch.bool) for n, lv in model.posterior[1].items()}
        if self.is_averaging:
            model = model._replace(moments=({}, {}))
        elif not self.share_alpha:
            model = Model(model.posterior._replace(log_variance={}), (model.moments[0], {}))
        return Server(model, NOTHING, kept, {}, torch.zeros(0, dtype=torch.int64), 0, 0)

    def init_client(self, client: int, key: Key) -> State:
        model = BLANK if self.is_averaging else self.start(key)
        return State(model, NOTHING, 0, client)

    def cohort(self, size: int, done: int) -> Cohort:
        return super().cohort(size, done) if self.is_averaging else EVERYONE

    def broadcast(self, server: Server, key: Key) -> Down | PerClient[Down]:
        if self.is_averaging:
            weights, variances = self.learned(server.model, server.rounds)
            mask = self.mask(server.model, server.rounds)
            statistics = {n: weights[n] for n in sorted(self.task.buffers)}
            weights = {n: w for n, w in weights.items() if n not in statistics}
            return Down(mask, weights, variances, statistics, server.examples, server.rounds)
        mask, content = server.parcel
        change = Down(mask, *content, {}, server.examples, server.rounds)

        def message(client: int) -> Down:
            is_level = server.rounds == 0 or client in server.devices
            if is_level:
                return change
            return change._replace(model=cast("Params", tree.flatten(server.model)))

        return PerClient(message)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        model = self._received(state.model, down)
        parcel, arrival, metrics = state.parcel, state.arrival, Metrics(0, {})
        if not parcel.content.weights:
            late = keys.generator(fold(key, "late")).integers(self.async_staleness + 1)
            arrival = down.rounds + int(late)
            model, parcel, metrics = self._work(model, down, data, key)
        here, left = (parcel, NOTHING) if arrival <= down.rounds else (NOTHING, parcel)
        statistics = {n: model.posterior.weights[n] for n in sorted(self.task.buffers)}
        up = Up(here.mask, *here.content, statistics, data.examples, state.device)
        kept = BLANK if self.is_averaging else model
        return up, State(kept, left, arrival, state.device), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        replies, model = round.replies, server.model
        if not self.is_averaging:  # the server moves as its devices did, by what they have read
            model = self._step(model, round.down(replies[0].device))
        senders = [r for r in replies if r.weights]
        mean = self._mean(server, senders, len(replies))
        # The warm-up has no masks; whoever is late after it counts as one who keeps everything.
        has_masks = server.rounds >= (self.warmup or 0) or self.async_staleness > 0
        sent_masks = {
            str(r.device): masks.completed(r.mask, server.kept) for r in senders if has_masks
        }
        sent, heard = masks.votes(list(sent_masks.values())), server.heard | sent_masks
        votes = masks.votes(list(heard.values())) if self.async_staleness else sent
        model = model.with_weights(tree.weighted_mean((r.statistics, 1) for r in replies))
        if self.is_averaging:
            model = self._moved(model, mean)
            return server._replace(
                model=model,
                kept=server.kept | self.mask(model, server.rounds + 1),
                examples=sum(r.examples for r in replies),
                rounds=server.rounds + 1,
            )
        return Server(
            model=model,
            parcel=Parcel({n: v > 0 for n, v in sent.items()}, mean),
            kept=server.kept | {n: 2 * v > len(heard) for n, v in votes.items()},
            heard=heard if self.async_staleness else {},
            devices=torch.tensor([r.device for r in replies]),
            examples=sum(r.examples for r in replies),
            rounds=server.rounds + 1,
        )

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        if self.is_averaging:
            return masks.apply(server.model.posterior.weights, server.kept)
        (mask, content), done = server.parcel, server.rounds
        model = self._step(server.model, Down(mask, *content, {}, 0, done))  # heard next by devices
        return masks.apply(model.posterior.weights, server.kept)

    def _received(self, model: Model, down: Down) -> Model:
        """What a device works with once it has read the broadcast."""
        if not self.is_averaging:
            return self._step(self._caught_up(model, down), down)
        at = Posterior({**down.weights, **down.model}, dict(down.log_variance))
        return Model(at, self.first_moments(at))

    def _caught_up(self, model: Model, down: Down) -> Model:
        """What the others agree on, for a device that missed a round (section 5)."""
        if not down.model:
            return model
        common: Model = tree.rebuild(Model, dict(down.model))
        if self.share_alpha:
            return common
        moments = common.moments[0], model.moments[1]
        return model._replace(moments=moments).with_weights(common.posterior.weights)

    def _step(self, model: Model, down: Down) -> Model:
        """Line 4 of Algorithm 1: devices and server move by what was sent back (section 4)."""
        if self.local_steps == 1:
            made = max(down.rounds - 1, 0)
            model = self.descend(model, Posterior(down.weights, down.log_variance), made, down.mask)
        else:
            model = self._moved(model, Posterior(down.weights, down.log_variance))
        return model.afresh() if down.rounds == (self.warmup or 0) else model

    def _moved(self, model: Model, lost: Posterior) -> Model:
        weights, log_variance = model.posterior
        new = {n: log_variance[n] - x for n, x in lost.log_variance.items()}
        model = model._replace(posterior=Posterior(weights, log_variance | new))
        return model.with_weights({n: weights[n] - x for n, x in lost.weights.items()})

    def _work(
        self, model: Model, down: Down, data: Batches, key: Key
    ) -> tuple[Model, Parcel, Metrics]:
        """Line 1: gradients of the bound at a mini-batch, or several steps along them."""
        fixed = self.task.buffers
        mask = down.mask if self.is_averaging else self.mask(model, down.rounds)
        used = mask if self.clip_training or self.is_averaging else {}
        bound = Elbo(down.rounds, down.examples, used)
        if self.local_steps is None:
            batches = list(data.work(key))
        else:
            batches = [data.draw(fold(key, "batch", step)) for step in range(self.local_steps)]
        weights, log_variance = model.posterior
        if self.local_steps == 1:
            change, loss = self.gradient(model, batches[0], bound, key)
            if not self.share_alpha:
                model = self.descend(model, Posterior({}, change.log_variance), down.rounds)
        else:
            (after, variances), moments, loss, *_ = self.train(model, batches, bound, key)
            lost = {n: log_variance[n] - lv for n, lv in variances.items()}
            change = Posterior(tree.subtract(weights, after), lost)
            log_variance = log_variance if self.share_alpha else log_variance | variances
            model = Model(Posterior(weights, log_variance), (moments[0], moments[1]))
        model = model.with_weights({n: weights[n] - change.weights[n] for n in fixed})
        sent = {n: x for n, x in change.weights.items() if n not in fixed}
        parcel = Parcel(mask, Posterior(sent, change.log_variance if self.share_alpha else {}))
        figures = {"train_loss": loss, "device_density": masks.density(mask)}
        processed = sum(batch.y.shape[0] for batch in batches)
        return model, parcel, Metrics(processed, figures, used or None)

    def _mean(self, server: Server, senders: Sequence[Up], devices: int) -> Posterior:
        """Line 3: sums over devices by their number, in which what is absent counts as 0."""
        if senders and self.is_averaging:
            # Section 11, point 6: by precision, each weight over those who sent it.
            lost = [Posterior(r.weights, r.log_variance) for r in senders]
            log_variance = server.model.posterior.log_variance
            return variational.pool_lost(log_variance, lost, [r.mask for r in senders])
        return Posterior(
            tree.weighted_mean(((r.weights, 1) for r in senders), devices),
            tree.weighted_mean(((r.log_variance, 1) for r in senders), devices),
        )

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
        self, model: Model, batch: Batch, bound: Elbo, key: Key
    ) -> tuple[Posterior, float]:
        """Gradients of the bound at one mini-batch, what statistics lost in it, and the bound."""
        at, fixed = self.learned(model, bound.rounds), self.task.buffers
        return local.gradient(self._objective(bound), at, batch, key=key, fixed=fixed)

    def train(
        self, model: Model, batches: Sequence[Batch], bound: Elbo, key: Key
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
        for i, (grad, lr) in enumerate(zip(grads, self._rates(rounds), strict=True)):
            if grad:
                params: Params = {n: parts[i][n] for n in grad}
                moved, moments[i] = optimisers.update(
                    self._optimisers[i], params, grad, moments[i], lr, present
                )
                parts[i] = parts[i] | moved
        return Model(Posterior(*parts), (moments[0], moments[1]))

    def _objective(self, bound: Elbo) -> Callable[[Posterior, Batch, Key], Tensor]:
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
