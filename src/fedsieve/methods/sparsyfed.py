"""SparsyFed: weights are powers of what is trained, each client sends the k largest.

Paper    Guastella et al., "SparsyFed: Sparse Adaptive Federated Training", ICLR 2025; weights as
         powers: Schwarz et al., "Powerpropagation", NeurIPS 2021 (specification rivals, section
         10).
Symbols  w = v |v|^(beta - 1) -> _weights   v -> server.roots, up.roots   beta -> power
         1 - s -> target_density
Differs  the paper also cuts activations in the backward pass, to save clients arithmetic and not
         bytes: left out, a method does not reach into the layers of a task. Density falls from 1
         over the run (`ramp`), gradients are clipped and rates fall; preset `paper` has the target
         from the first round on. Beta is a number; that from the spectral norm is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from torch import Tensor

from fedsieve.core import tree
from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params
from fedsieve.core.method import Batch, Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule, gradual, ramp_in_run
from fedsieve.sparsity import masks

PAPER = {
    "target_density": 0.05,
    "ramp": 0,
    "lr": 0.5,
    "clip_norm": None,
    "schedule": "exponential(gamma=0.9944)",
    "optimiser": "sgd(weight_decay=0.001)",
}


class Server(NamedTuple):
    roots: Params  # v of maskable weights, all others as they are
    rounds: int


class Down(NamedTuple):
    mask: Bits
    roots: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    roots: Annotated[Params, Kept(where="mask")]
    examples: Examples


@register("sparsyfed")
@dataclass(frozen=True, kw_only=True)
class SparsyFed(Method[Server, tuple[()], Down, Up]):
    """Powerpropagation on clients, which send their k largest weights; the server averages."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER}
    task: Task
    target_density: float = option(0.25, "share of the maskable weights that a client sends")
    power: float = option(1.25, "beta: weights are roots to this power; 1: as they are")
    ramp: int | None = option(
        None, "rounds until density has fallen from 1; none: 9/10 of all; paper: 0"
    )
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient of roots; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("sparsyfed: target_density", self.target_density, 0, 1, above=True)
        in_range("sparsyfed: power", self.power, 1)
        in_range("sparsyfed: ramp", self.ramp or 0, 0)
        in_range("sparsyfed: lr", self.lr, 0, above=True)
        limit = 1 if self.clip_norm is None else self.clip_norm
        in_range("sparsyfed: clip_norm", limit, 0, above=True)
        size = self.task.graph.maskable_size
        if not masks.count_at(self.target_density, size):
            raise ConfigError(
                f"sparsyfed: target_density={self.target_density} keeps none of the {size} "
                "maskable weights. Raise it."
            )

    def in_run(self, rounds: int) -> Self:
        return replace(super().in_run(rounds), ramp=ramp_in_run(self.ramp, rounds))

    def init_server(self, key: Key) -> Server:
        weights = self.task.init_params(fold(key, "weights"))
        return Server(self._to_power(weights, 1 / self.power), 0)

    def init_client(self, client: int, key: Key) -> tuple[()]:
        return ()

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(self._support(server.roots), server.roots, server.rounds)

    def client_update(
        self, down: Down, state: tuple[()], data: Batches, key: Key
    ) -> tuple[Up, tuple[()], Metrics]:
        def loss(roots: Params, batch: Batch, key: Key) -> Tensor:
            return self.task.loss(self._to_power(roots, self.power), batch, key)

        trained = local.train(
            loss,
            down.roots,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
        )
        mask = self._largest(trained.params, down.rounds + 1)
        metrics = Metrics(
            trained.processed, {"train_loss": trained.loss}, self._support(trained.params)
        )
        return Up(mask, masks.apply(trained.params, mask), data.examples), state, metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        mean = tree.weighted_mean(
            (r.roots, r.examples if self.weighting == "samples" else 1) for r in round.replies
        )
        return Server(mean, server.rounds + 1)

    def model(self, server: Server, state: tuple[()]) -> Params:
        return self._to_power(server.roots, self.power)

    def _to_power(self, params: Params, power: float) -> Params:
        """The parameters with sign(v) |v|^power in the place of maskable ones."""
        if power == 1:
            return params
        names = self.task.graph.maskable
        return {n: v.sign() * v.abs().pow(power) if n in names else v for n, v in params.items()}

    def _largest(self, roots: Params, done: int) -> Mask:
        """The k largest of all layers, of which those that are not 0."""
        density = gradual(self.target_density, done, self.ramp or 0)
        kept = masks.count_at(density, self.task.graph.maskable_size)
        chosen = masks.top_k(roots, tuple(self.task.graph.maskable), kept)
        return {n: bits & (roots[n] != 0) for n, bits in chosen.items()}

    def _support(self, roots: Params) -> Mask:
        return masks.nonzero(roots, tuple(self.task.graph.maskable))
