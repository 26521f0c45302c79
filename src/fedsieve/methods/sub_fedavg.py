"""Sub-FedAvg: clients prune masks of their own, weights are averaged over those who hold them.

Paper    Vahidian et al., "Personalized Federated Learning by Structured and Unstructured Pruning
         under Data Heterogeneity", 2021 (specification rivals, section 4).
Symbols  theta -> server.weights   m_k -> server.masks   r -> prune_share   Delta -> distance
         Acc_th -> gate   gamma -> scales of BatchNorm
Differs  the gate asks validation data, where the published program asks test data, and by default
         asks for a share of the score before pruning, not for a fixed accuracy. The second mask is
         that of the last epoch, in the program of the fifth; with one epoch the first is that of
         its half. The last step stops at the target (`last_share`), which counts weights alone.
         Normalisation is never masked (`mask_norms`) but with its channel. Channels are cut behind
         convolutions whose output is normalised before anything else reads or adds to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedsieve.core.errors import ConfigError
from fedsieve.core.graph import Layer, Norm
from fedsieve.core.keys import Key, fold
from fedsieve.core.message import Bits, Count, Examples, Kept, Mask, Params, Sender, count_nonzero
from fedsieve.core.method import Batch, Batches, Method, Metrics, PerClient, Round, Task, register
from fedsieve.core.options import in_range, option
from fedsieve.optim import local
from fedsieve.optim.optimisers import SGD, Moments, Optimiser
from fedsieve.optim.schedules import Cosine, Schedule
from fedsieve.sparsity import layers, masks

PAPER = {
    "gate_on": "accuracy",
    "gate": 0.5,
    "lr": 0.001,
    "clip_norm": None,
    "schedule": "constant",
    "optimiser": "sgd(momentum=0.9)",
    "weighting": "uniform",
}
CODE = PAPER | {
    "target_density": 0.7,
    "prune_share": 0.1,
    "last_share": 0.05,
    "mask_norms": True,
    "lr": 0.01,
    "optimiser": "sgd(momentum=0.5)",
}
CODE_HYBRID = CODE | {
    "structure": "hybrid",
    "target_density": 0.5,
    "distance": 0.0005,
    "mask_norms": False,
}
Part = Literal["weights", "channels"]


class Server(NamedTuple):
    weights: Params
    masks: dict[str, Mask]  # by client; whoever has none holds all
    rounds: int


class State(NamedTuple):
    client: int
    weights: Params  # as last trained and pruned, for evaluation; empty: the server's


class Down(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    rounds: Count


class Up(NamedTuple):
    mask: Bits
    weights: Annotated[Params, Kept(where="mask")]
    client: Sender
    examples: Examples


class Channels(NamedTuple):
    """Channels that a normalisation scales, the layer that writes them, and those that read."""

    norm: Norm
    writer: Layer
    readers: tuple[Layer, ...]

    @property
    def scale(self) -> str:
        return f"{self.norm.name}.weight"


@register("sub_fedavg")
@dataclass(frozen=True, kw_only=True)
class SubFedAvg(Method[Server, State, Down, Up]):
    """Personal masks by iterative pruning, weights averaged over those who hold them."""

    personal = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "code": CODE,
        "code_hybrid": CODE_HYBRID,
        "paper": PAPER,
    }
    task: Task
    structure: Literal["unstructured", "hybrid"] = option(
        "unstructured", "single weights, or channels by scales of BatchNorm and linear weights"
    )
    target_density: float = option(0.5, "share of weights below which a client does not prune")
    prune_share: float = option(0.2, "r: share of a layer's kept weights that a pruning cuts")
    last_share: float = option(
        1.0, "largest share of the pruning that would pass the target; program: 0.05"
    )
    distance: float = option(1e-4, "masks of first and last epoch must differ by more than this")
    gate_on: Literal["trained", "accuracy"] = option(
        "trained", "the pruned model must reach `gate` of the score before pruning, or of 1"
    )
    gate: float = option(0.9, "score of the pruned model on validation data, see gate_on")
    held_back: float = option(0.1, "share of a client's training data that is held back for it")
    channel_share: float = option(0.45, "hybrid: share of kept channels that a pruning cuts")
    channel_density: float = option(0.5, "hybrid: share of a layer's channels that stay")
    channel_distance: float = option(0.01, "hybrid: as `distance`, of masks of channels")
    scale_l1: float = option(1e-4, "hybrid: L1 penalty on scales of BatchNorm")
    mask_norms: bool = option(False, "scales of normalisation are masked, too, as in the program")
    scored: Literal["own", "newest"] = option(
        "own", "a client's model: as it last trained it, or its part of the server's"
    )
    lr: float = option(1.0, "client learning rate")
    clip_norm: float | None = option(1.0, "largest norm of a gradient; the paper: none")
    schedule: Schedule = option(Cosine(floor=0.02), "of the client learning rate, over rounds")
    optimiser: Optimiser = option(SGD(), "of the client; fresh in every round")
    weighting: Literal["samples", "uniform"] = option(
        "samples", "clients count by examples or equally"
    )

    def __post_init__(self) -> None:
        for name in ("target_density", "last_share", "channel_density"):
            in_range(f"sub_fedavg: {name}", getattr(self, name), 0, 1, above=True)
        for name in ("prune_share", "channel_share", "held_back"):
            in_range(f"sub_fedavg: {name}", getattr(self, name), 0, 1, above=True, below=True)
        for name in ("gate", "distance", "channel_distance"):
            in_range(f"sub_fedavg: {name}", getattr(self, name), 0, 1)
        in_range("sub_fedavg: scale_l1", self.scale_l1, 0)
        in_range("sub_fedavg: lr", self.lr, 0, above=True)
        in_range("clip_norm", 1 if self.clip_norm is None else self.clip_norm, 0, above=True)
        if self.structure == "hybrid" and not self._channels:
            raise ConfigError(
                "sub_fedavg: structure=hybrid cuts channels by scales of BatchNorm, and the model "
                "has no convolution with a BatchNorm of its own behind it. Use "
                "structure=unstructured, or a model such as cnn7, vgg_like or resnet8."
            )

    def init_server(self, key: Key) -> Server:
        return Server(self.task.init_params(fold(key, "weights")), {}, 0)

    def init_client(self, client: int, key: Key) -> State:
        return State(client, {})

    def broadcast(self, server: Server, key: Key) -> PerClient[Down]:
        whole = Down(self._whole(server.weights), server.weights, server.rounds)
        own = {c: whole._replace(mask=mask) for c, mask in server.masks.items()}
        return PerClient(lambda client: own.get(str(client), whole))

    def client_update(
        self, down: Down, state: State, data: Batches, key: Key
    ) -> tuple[Up, State, Metrics]:
        may_prune = self._may_prune(down)
        training, held = data.split(self.held_back) if may_prune else (data, data)
        batches = iter(training.work(key))
        early = self._train(
            masks.apply(down.weights, down.mask),
            down,
            islice(batches, training.steps // max(training.epochs, 2)),
            key,
        )
        late = self._train(early.params, down, batches, fold(key, "rest"), early.moments)
        mask = down.mask
        if may_prune:
            for part in self._parts:
                mask = self._pruned(part, early.params, late.params, mask, held)
        own = masks.apply(late.params, mask)
        steps = early.steps + late.steps
        loss = (early.loss * early.steps + late.loss * late.steps) / max(steps, 1)
        values = {"train_loss": loss, "kept": self._density(mask)}
        processed = early.processed + late.processed
        used = {n: bits.expand_as(own[n]) for n, bits in down.mask.items()}
        after = State(state.client, own if self.scored == "own" else {})
        up = Up(mask, own, state.client, data.examples)
        return up, after, Metrics(processed, values, used)

    def server_update(self, server: Server, round: Round[Down, Up], key: Key) -> Server:
        parts = [
            layers.Part(r.weights, r.mask, r.examples if self.weighting == "samples" else 1)
            for r in round.replies
        ]
        held = server.masks | {str(r.client): r.mask for r in round.replies}
        return Server(layers.overlap_mean(parts, server.weights), held, server.rounds + 1)

    def model(self, server: Server, state: State | tuple[()]) -> Params | None:
        if not isinstance(state, State):
            return None
        part = masks.apply(server.weights, server.masks.get(str(state.client), {}))
        return state.weights or part

    def _train(
        self,
        weights: Params,
        down: Down,
        batches: Iterable[Batch],
        key: Key,
        moments: tuple[Moments, ...] = (),
    ) -> local.Trained[Params]:
        """Steps on the loss of the masked model, whose pruned weights have no gradient."""
        mask = {n: m for n, m in down.mask.items() if n not in self.task.buffers}
        scales = [x.scale for x in self._channels] if self.structure == "hybrid" else []

        def loss(weights: Params, batch: Batch, key: Key) -> Tensor:
            value = self.task.loss(masks.apply(weights, mask), batch, key)
            if not scales:
                return value
            return value + self.scale_l1 * torch.cat([weights[n] for n in scales]).abs().sum()

        return local.train(
            loss,
            weights,
            batches,
            self.optimiser,
            lr=self.lr * self.schedule.factor(down.rounds),
            key=key,
            fixed=self.task.buffers,
            moments=moments,
            clip_norm=self.clip_norm,
        )

    def _may_prune(self, down: Down) -> bool:
        """Whether a client keeps more than the target, and some of it may be cut."""
        if self._density(down.mask) <= self.target_density:
            return False
        smaller = [self._candidate(part, down.weights, down.mask) for part in self._parts]
        return any(bits.sum() < down.mask[n].sum() for part in smaller for n, bits in part.items())

    @property
    def _parts(self) -> tuple[Part, ...]:
        return ("weights", "channels") if self.structure == "hybrid" else ("weights",)

    def _pruned(self, part: Part, early: Params, late: Params, mask: Mask, held: Batches) -> Mask:
        """The next mask; the old one where it has settled or pruning would cost too much."""
        first, last = (self._candidate(part, weights, mask) for weights in (early, late))
        least = self.distance if part == "weights" else self.channel_distance
        if _distance(first, last) <= least:
            return mask
        pruned = self._joined(mask | last)
        score = local.score(self.task, masks.apply(late, pruned), held)
        if self.gate_on == "accuracy":
            return pruned if score > self.gate else mask
        before = local.score(self.task, masks.apply(late, mask), held)
        return pruned if score >= self.gate * before else mask

    def _candidate(self, part: Part, weights: Params, mask: Mask) -> Mask:
        """Bits of what a part prunes, without the smallest."""
        if part == "channels":
            own = {x.scale: mask[x.scale] for x in self._channels}
            return layers.pruned(weights, own, self.channel_share, self.channel_density)
        left = self._density(mask) - self.target_density
        share = self.prune_share
        if left < share:
            share = min(share, self.last_share)
        own = {n: mask[n] for n in self._by_weight}
        return layers.pruned(weights, own, share, self.target_density)

    @property
    def _by_weight(self) -> list[str]:
        """Tensors of which single weights are cut."""
        graph = self.task.graph
        if self.structure == "hybrid":
            return [x.weight for x in graph.layers if x.kind == "linear"]
        norms = {n for x in graph.norms for n in x.tensors if n.endswith(".weight")}
        return [*graph.maskable, *(sorted(norms) if self.mask_norms else ())]

    @property
    def _channels(self) -> list[Channels]:
        """Convolutions with a BatchNorm that alone scales what they alone write."""
        graph, found = self.task.graph, []
        for norm in graph.norms:
            writers = [x for x in graph.layers if x.target == norm.space]
            beside = [x for x in graph.norms if x.space == norm.space]
            is_own = len(writers) == len(beside) == 1 and writers[0].kind == "conv"
            is_scaled = f"{norm.name}.weight" in norm.tensors
            if is_own and is_scaled and not norm.mixes and graph.space[norm.space].is_cuttable:
                readers = tuple(x for x in graph.layers if x.source == norm.space)
                found.append(Channels(norm, writers[0], readers))
        return found

    def _whole(self, weights: Params) -> Mask:
        """The mask of a client that has not pruned."""
        names = [*self._by_weight, *(x.scale for x in self._channels)]
        if self.structure == "unstructured":
            names = self._by_weight
        return self._joined({n: torch.ones_like(weights[n], dtype=torch.bool) for n in names})

    def _joined(self, mask: Mask) -> Mask:
        """The mask in which a cut channel takes with it what writes, scales and reads it."""
        if self.structure == "unstructured":
            return mask
        whole = {n: mask[n] for n in self._by_weight}
        for norm, writer, readers in self._channels:
            bits = mask[f"{norm.name}.weight"]
            whole |= dict.fromkeys(norm.tensors, bits)
            links = [(writer, bits[:, None]), *((x, _columns(x, bits)) for x in readers)]
            for layer, link in links:
                kept = link.view(*link.shape, *[1] * (len(layer.shape) - 2))
                whole[layer.weight] = whole[layer.weight] & kept if layer.weight in whole else kept
        return whole

    def _density(self, mask: Mask) -> float:
        """Share of maskable weights that are kept."""
        kept = 0
        for layer in self.task.graph.layers:
            if layer.weight in self.task.graph.maskable:
                bits = mask.get(layer.weight, torch.ones((), dtype=torch.bool))
                kept += count_nonzero(bits.expand(layer.shape))
        return kept / self.task.graph.maskable_size


def _columns(layer: Layer, bits: Tensor) -> Tensor:
    """For the inputs of a layer, whether their channel is kept."""
    return bits.repeat_interleave(layer.repeat)[None, :]


def _distance(first: Mask, last: Mask) -> float:
    """The share of bits that differ, a mean over tensors."""
    shares = [count_nonzero(bits ^ last[n]) / bits.numel() for n, bits in first.items()]
    return sum(shares) / max(len(shares), 1)
