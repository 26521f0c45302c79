"""FedTopK: dense training, but only the largest changes of the weights travel up.

Paper    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1,
         with one memory on every client.
Symbols  x_t -> server.weights   m_t -> state.unsent   comp_k -> masks.top_k   g_t -> up.change
Differs  the compressed step is a round of local training, not one gradient; biases and
         normalisation travel whole.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch

import fedsieve
from fedsieve.core import tree
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Dense, Kept, Params
from fedsieve.core.method import Batches, Method, Metrics, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Optimiser
from fedsieve.sparsity import masks


class Server(NamedTuple):
    weights: Params


class State(NamedTuple):
    unsent: Params  # changes this client has made and the server has not seen


class Down(NamedTuple):
    weights: Dense


class Up(NamedTuple):
    mask: Bits
    change: Annotated[Params, Kept(where="mask")]
    examples: Count


@register("fed_topk")
@dataclass(frozen=True, kw_only=True)
class FedTopK(Method[Server, State, Down, Up]):
    """Top-k changes with error feedback."""

    task: Task
    share: float = option(0.05, "k over the number of maskable weights")
    lr: float = option(0.1, "client learning rate")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")

    def __post_init__(self) -> None:
        in_range("fed_topk: share", self.share, 0, 1, above=True)
        in_range("fed_topk: lr", self.lr, 0, above=True)

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")))

    def init_client(self, client: int, key: Key) -> State:
        start = self.task.init_params(fold(key, "weights"))
        return State({n: torch.zeros_like(start[n]) for n in self.task.graph.maskable})

    def broadcast(self, server: Server, key: Key) -> Down:
        return Down(server.weights)

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        trained = local.train(
            self.task.loss,
            down.weights,
            data.work(key),
            self.optimiser,
            lr=self.lr,
            key=key,
            fixed=self.task.buffers,
        )
        wanted = tree.subtract(trained.params, down.weights)
        wanted |= {name: wanted[name] + unsent for name, unsent in state.unsent.items()}
        mask = masks.top_k(wanted, self.task.graph.maskable, self._kept(wanted))
        unsent = {name: wanted[name] * ~mask[name] for name in mask}
        metrics = Metrics(trained.processed, {"train_loss": trained.loss})
        return Up(mask, wanted, data.examples), State(unsent), metrics

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        change = tree.weighted_mean((r.change, r.examples) for r in round.replies)
        return Server({name: value + change[name] for name, value in server.weights.items()})

    def model(self, server: Server, state: State | tuple[()]) -> Params:
        return server.weights

    def _kept(self, params: Params) -> int:
        return int(self.share * sum(params[n].numel() for n in self.task.graph.maskable))


def main(rounds: int = 20) -> None:
    """Upload of FedTopK beside that of FedAvg on the embedded digits."""
    for method in ("fedavg", "fed_topk"):
        result = fedsieve.run(method=method, rounds=rounds, epochs=3, batch_size=16, lr=0.1)
        summary = result.summary
        print(
            f"{method:8}  accuracy {summary.global_accuracy:.3f}"
            f"  up {summary.up_bytes / 1e6:5.2f} MB  down {summary.down_bytes / 1e6:5.2f} MB"
        )


if __name__ == "__main__":
    main()
