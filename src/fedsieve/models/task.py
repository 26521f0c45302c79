"""A module with its loss, as pure functions of parameters."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsieve.core import keys
from fedsieve.core.errors import ConfigError, ModelError, unknown
from fedsieve.core.graph import LayerGraph
from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.core.method import Batch, Task
from fedsieve.models.objective import OBJECTIVES, Kind
from fedsieve.models.trace import trace
from fedsieve.optim.local import layout


class ModelTask(Task):
    """A task for any module that `trace` understands.

    `model` is a factory, called under a seed for every `init_params`, or a module whose own values
    are the start for every seed. `kind` says what outputs are for: "classes" (cross-entropy,
    accuracy), "binary" (one logistic unit, accuracy), "labels" (binary cross-entropy, micro-F1) or
    "values" (squared error, R2).

    During a forward pass the given tensors stand in the module's place: of any strides, with a
    gradient history, or of other widths. `loss` runs in training mode, in which BatchNorm updates
    its running statistics in `params` in place; nothing else is ever changed. Kernels may be
    channels-last, as `predict` makes them; a module that cannot work on what these give, say with
    a `view`, gets them contiguous.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        kind: Kind,
        input_shape: tuple[int, ...],
        *,
        is_tokens: bool = False,
    ) -> None:
        if kind not in OBJECTIVES:
            raise ConfigError(unknown("kind of task", kind, OBJECTIVES))
        self._objective = OBJECTIVES[kind]
        self._kind = kind
        self._factory = None if isinstance(model, nn.Module) else model
        with _seeded(Key(0)):
            module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        self._module = _prepared(module)
        # Without hooks a module's forward is the module, less the machinery of calling it.
        has_hooks = self._module._forward_hooks or self._module._forward_pre_hooks
        self._run = self._module if has_hooks else self._module.forward
        self._graph = trace(self._module, input_shape, is_tokens=is_tokens)
        self._slots = _slots(self._module)
        self._buffers = frozenset(s.name for s in self._slots if s.is_buffer)
        kind_of_input = torch.long if is_tokens else torch.float32
        self._example = torch.zeros(2, *input_shape, dtype=kind_of_input)
        self._takes_any_layout = True  # unless the first try fails
        self._takes_any_layout = self._runs_channels_last(self._example)
        self._is_random = self._draws_noise(self._example)

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def graph(self) -> LayerGraph:
        return self._graph

    @property
    def sums(self) -> int:
        return self._objective.sums

    @property
    def buffers(self) -> frozenset[str]:
        return self._buffers

    def init_params(self, key: Key) -> Params:
        module = self._module
        if self._factory is not None:
            with _seeded(key):
                module = self._factory()
        return {
            slot.name: slot.tensor.detach().float().clone(memory_format=torch.contiguous_format)
            for slot in _slots(module)
        }

    def loss(self, params: Params, batch: Batch, key: Key) -> Tensor:
        if self._is_random:
            with _seeded(key):
                outputs = self._forward(params, batch.x, training=True)
        else:
            outputs = self._forward(params, batch.x, training=True)
        return self._objective.loss(outputs, batch.y)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        laid = {name: p.contiguous(memory_format=layout(p)) for name, p in params.items()}
        with torch.no_grad():
            return self._forward(laid, x, training=False)

    def probe(self, params: Params) -> Params:
        inputs_of: Params = {}
        hooks = [
            self._module.get_submodule(layer.name).register_forward_pre_hook(
                lambda _, inputs, weight=layer.weight: inputs_of.update({weight: inputs[0]})
            )
            for layer in self._graph.layers
            if layer.kind in {"linear", "conv"}
        ]
        try:
            self.predict(params, self._example)
        finally:
            for hook in hooks:
                hook.remove()
        return inputs_of

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._objective.tally(outputs, y)

    def score(self, tally: Tensor) -> float:
        return self._objective.score(tally)

    def mean_loss(self, tally: Tensor) -> float:
        return self._objective.mean_loss(tally)

    def _forward(self, params: Params, x: Tensor, *, training: bool) -> Tensor:
        module = self._module
        if module.training is not training:
            module.train(training)
        if not self._takes_any_layout:
            plain = torch.contiguous_format
            kernels = {name: w for name, w in params.items() if w.dim() == 4}
            params = params | {name: w.clone(memory_format=plain) for name, w in kernels.items()}
        # torch.func.functional_call does the same, but in 30 us where this takes 1.
        for table, entry, name, _, _ in self._slots:
            table[entry] = params[name]
        try:
            outputs: Tensor = self._run(x)
        finally:
            for table, entry, _, tensor, _ in self._slots:
                table[entry] = tensor
        return outputs.squeeze(-1) if self._kind in {"values", "binary"} else outputs

    def _runs_channels_last(self, example: Tensor) -> bool:
        """Whether all goes well with the faster layout; a `view` behind a convolution does not."""
        try:
            self.predict({slot.name: slot.tensor for slot in self._slots}, example)
        except RuntimeError:
            return False
        return True

    def _draws_noise(self, example: Tensor) -> bool:
        """Whether training draws from torch's generator: dropout, in whatever way it is written."""
        params = {slot.name: slot.tensor.clone() for slot in self._slots}
        with _seeded(Key(0)), torch.no_grad():
            before = torch.default_generator.get_state()
            self._forward(params, example, training=True)
            return not torch.equal(before, torch.default_generator.get_state())


class _Slot(NamedTuple):
    """One tensor of a module: `table[entry]` is where a layer looks it up."""

    table: dict[str, Tensor | None]
    entry: str
    name: str
    tensor: Tensor
    is_buffer: bool


def _slots(module: nn.Module) -> list[_Slot]:
    """Parameters in module order, then floating-point buffers that belong to the model's state."""
    kept = module.state_dict().keys()
    slots = [
        _Slot(table, entry, f"{prefix}.{entry}".lstrip("."), tensor, is_buffer)
        for prefix, layer in module.named_modules()
        for table, is_buffer in ((layer._parameters, False), (layer._buffers, True))
        for entry, tensor in table.items()
        if tensor is not None and tensor.is_floating_point()
    ]
    return sorted((s for s in slots if s.name in kept), key=lambda slot: slot.is_buffer)


def _prepared(module: nn.Module) -> nn.Module:
    """`module` in float32, without the counters of BatchNorm."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            if layer.momentum is None and layer.track_running_stats:
                raise ModelError(
                    f"layer {name!r} ({type(layer).__name__}) has momentum=None, an average over a "
                    "counter of batches, which is not kept. Give it a number such as 0.1."
                )
            layer.num_batches_tracked = None
    return module.float()


@contextmanager
def _seeded(key: Key) -> Iterator[None]:
    """Draws from torch's global generator belong to `key`; its state is put back afterwards."""
    # torch.manual_seed would also queue a call for every other kind of device: 60 times slower.
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(keys.torch_seed(key))
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
