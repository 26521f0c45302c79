"""FedSpa: personal sparse models, masks of fixed density that clients change after every round.

Paper    Huang et al., "Achieving Personalized Federated Learning with Sparse Local Models", 2022,
         Algorithm 1 (specification rivals, section 7).
Symbols  w -> server.weights   m_k -> mask   U_k -> -up.change   alpha_t -> drop_share * schedule
         1 - s -> target_density
Differs  the gradient that growth follows is that of a training pass, not of an evaluation. The
         default clips gradients and lets rates fall over the run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from fedsieve.core import keys, tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params, Sender
from fedsieve.core.method import Batches, Method, Metrics, PerClient, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks
from fedsieve.sparsity.layers import Allocation

PAPER = {
    "target_density": 0.5,
    "lr": 0.01,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
}
CODE = {
    "lr": 0.1,
    "clip_norm": 10.0,
    "schedule": "exponential(gamma=0.998)",
    "optimiser": "sgd(weight_decay=0.0005)",
}


class Server(NamedTuple):
    weights: Params  # dense
    start: Mask  # of clients not heard yet
    masks: dict[str, Mask]  # of the others, by client
    rounds: int


class State(NamedTuple):
    client: int
    mask: Mask


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    client: Sender
    mask: Bits  # trained with
    change: Annotated[Params, Kept(where="mask", is_change=True)]
    next_mask: Bits
    examples: Examples


@register("fedspa")
@dataclass(frozen=True, kw_only=True)
class FedSpa(Method[Server, State, Down, Up]):
    """Personal masks over one dense model: clients train, drop and grow, the server adds up."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "code": PAPER | CODE,
    }
    task: Task
    target_density: float = option(0.3, "share of weights that every client keeps, at every moment")
    allocation: Allocation = option("erk", "how it is spread over layers")
    growth: Literal["gradient", "random", "static"] = option(
        "gradient", "what grows in place of dropped weights; static: masks never change"
    )
    drop_share: float = option(0.5, "alpha_0: share of a layer's kept weights that is dropped")
    drop_schedule: Schedule = option(Cosine(), "of drop_share, over rounds")
    lr: float = option(1.0, "client learning rate")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    weighting: Literal["samples", "uniform"] = option(
        "uniform", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        in_range("fedspa: target_density", self.target_density, 0, 1, above=True)
        in_range("fedspa: drop_share", self.drop_share, 0, 1)
        in_range("fedspa: lr", self.lr, 0, above=True)
        if self.clip_norm is not None:
            in_range("fedspa: clip_norm", self.clip_norm, 0, above=True)

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), self._start(key), {}, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client, self._start(key))

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        def message(client: int) -> Down:
            mask = server.masks.get(str(client), server.start)
            return Down(mask, masks.apply(server.weights, mask), server.rounds)

        return PerClient(message)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        trained = local.train(
            self.task.loss,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            clip_norm=self.clip_norm,
            project=partial(masks.apply, mask=down.mask),
        )
        scores, examples = self._growth_scores(trained.params, data, fold(key, "growth"))
        after = self._replaced(trained.params, scores, down.mask, down.rounds)
        change = tree.subtract(trained.params, down.weights)
        processed = trained.processed + examples
        metrics = Metrics(processed, {"train_loss": trained.loss}, down.mask, examples)
        up = Up(state.client, down.mask, change, after, data.examples)
        return up, state._replace(mask=after), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        mean = tree.weighted_mean(
            (r.change, r.examples if self.weighting == "samples" else 1) for r in round.replies
        )
        weights = {name: value + mean[name] for name, value in server.weights.items()}
        heard = {str(r.client): r.next_mask for r in round.replies}
        return Server(weights, server.start, server.masks | heard, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        return masks.apply(server.weights, state.mask) if isinstance(state, State) else None

    def _start(self, key: Key) -> Mask:
        """The mask that all clients begin with."""
        graph = self.task.graph
        counts = layers.allocate(graph, self.target_density, self.allocation)
        return layers.draw(graph, counts, fold(key, "mask"))

    def _growth_scores(self, weights: Params, data: Batches, key: Key) -> tuple[Params, int]:
        """What decides which weights grow, and the examples it took."""
        names = self.task.graph.maskable
        if self.growth != "gradient":
            return {n: keys.uniform(fold(key, n), weights[n].shape) for n in names}, 0
        batch = data.draw(fold(key, "batch"))
        gradient, _ = local.gradient(
            self.task.loss, weights, batch, key=key, fixed=self.task.buffers
        )
        return gradient, len(batch.y)

    def _replaced(self, weights: Params, scores: Params, mask: Mask, done: int) -> Mask:
        """The mask whose smallest weights have made room for as many of the largest scores.

        A weight just dropped may grow again at once.
        """
        if self.growth == "static":
            return mask
        share = self.drop_share * self.drop_schedule.factor(done)
        drops = {n: math.ceil(share * kept - 1e-9) for n, kept in layers.sizes(mask).items()}
        return layers.grown(scores, layers.dropped(weights, mask, drops), drops)
