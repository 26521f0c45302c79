"""One walk over a traced module, placing the channels of every tensor on the way.

Layers open new spaces, additions join two, and an operation without a rule of its own freezes the
spaces it touches: none of their channels may be cut, which is always safe.
"""

import math
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from fedsieve.core.errors import ModelError
from fedsieve.core.graph import Layer, LayerGraph, Norm
from fedsieve.models.spaces import Place, Spaces
from fedsieve.models.zoo.lstm import StackedLstm

# Modules, functions and methods by one spelling: lower case without underscores. A channel of
# zeros stays zero in all of them; sigmoid, softmax and the like have no rule because it does not.
_POINTWISE = frozenset(
    (
        *("relu", "relu6", "leakyrelu", "elu", "celu", "selu", "gelu", "silu", "mish", "tanh"),
        *("hardswish", "softsign", "identity", "dropout", "dropout1d", "dropout2d"),
        *("contiguous", "clone", "float"),
    )
)
_POOLS = frozenset(
    f"{kind}pool{d}d" for kind in ("max", "avg", "adaptivemax", "adaptiveavg") for d in (1, 2)
)
EXAMPLES = 2  # in the example; with one alone, a squeeze would take the batch axis away

Kind: TypeAlias = Literal["linear", "conv", "depthwise", "lstm", "embedding"]

_LAYERS = (
    *(nn.Conv1d, nn.Conv2d, nn.Linear, nn.Embedding, StackedLstm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm),
)
_SUPPORTED = (
    f"Supported are {', '.join(layer.__name__ for layer in _LAYERS)} and layers without parameters"
)


class Walk(fx.Interpreter):
    """Runs a traced module on an example; `finish` then gives its layer graph."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.extra_traceback = False
        self._spaces = Spaces()
        self._places: dict[fx.Node, Place] = {}
        self._layers: list[tuple[Layer, int, int]] = []
        self._norms: list[tuple[Norm, int]] = []
        self._applied: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        try:
            out = super().run_node(n)
        except Exception as error:
            raise ModelError(f"{self._where(n)} failed on an example: {error}") from error
        if n.op == "output" and not isinstance(out, Tensor):
            raise ModelError(
                f"the model returns a {type(out).__name__}, but one tensor of outputs is needed. "
                "Write a module around it whose forward returns that tensor alone."
            )
        if isinstance(out, Tensor):
            self._places[n] = self._place(n, out)
        elif isinstance(out, tuple | list) and not isinstance(out, torch.Size):
            if n.op == "call_module" and any(
                True for _ in self.fetch_attr(str(n.target)).parameters()
            ):
                raise ModelError(
                    f"{self._where(n)} has weights and returns several tensors, which no rule "
                    "covers. For a recurrent net use fedsieve.models.zoo.lstm.StackedLstm; or "
                    "build that part from layers with one output."
                )
            self._freeze_inputs(n)
        return out

    def finish(self) -> LayerGraph:
        """The graph of what has run; ModelError if a parameter was not met."""
        met = {t for norm, _ in self._norms for t in norm.tensors}
        met |= {t for layer, _, _ in self._layers for t in (layer.weight, layer.bias or "")}
        unused = [name for name, _ in self.module.named_parameters() if name not in met]
        if unused:
            raise ModelError(
                f"the model's forward never uses {', '.join(unused)}. Remove what is not used."
            )
        spaces = self._spaces.finish()
        return LayerGraph(
            layers=tuple(
                replace(layer, source=spaces[source].name, target=spaces[target].name)
                for layer, source, target in self._layers
            ),
            norms=tuple(replace(norm, space=spaces[n].name) for norm, n in self._norms),
            spaces=tuple(dict.fromkeys(spaces)),
        )

    def _place(self, node: fx.Node, out: Tensor) -> Place:
        if node.op == "placeholder":
            return self._opaque(node, out, "<input>")
        if node.op == "get_attr":
            return self._attribute(node, out)
        if node.op == "call_module":
            return self._module(node, out)
        if node.op == "output":
            self._freeze_inputs(node)
            return self._places[node.all_input_nodes[0]]
        target = node.target
        return self._operation(node, out, target if isinstance(target, str) else target.__name__)

    def _attribute(self, node: fx.Node, out: Tensor) -> Place:
        if isinstance(out, nn.Parameter):
            owner, _, name = str(node.target).rpartition(".")
            where = f"layer {owner!r}" if owner else "the model"
            kind = type(self.module.get_submodule(owner)).__name__
            raise ModelError(
                f"{where} ({kind}) uses its parameter {name!r} outside the layers that can be "
                f"traced. {_SUPPORTED}: use one of them. A model that is one layer is written "
                "nn.Sequential(layer)."
            )
        return self._opaque(node, out)

    def _module(self, node: fx.Node, out: Tensor) -> Place:
        module = self.module.get_submodule(str(node.target))
        has_parameters = any(True for _ in module.parameters())
        if has_parameters and node.target in self._applied:
            raise ModelError(
                f"{self._where(node)} is applied twice, so that two places share its weight. "
                "Give each place a layer of its own."
            )
        self._applied.add(str(node.target))
        # A subclass may compute something else with the same weight.
        layer = module if type(module) in _LAYERS else None
        match layer:
            case nn.Conv1d() | nn.Conv2d():
                return self._conv(node, layer, out)
            case nn.Linear():
                return self._linear(node, layer, out)
            case nn.Embedding():
                return self._embedding(node, layer, out)
            case StackedLstm():
                return self._lstm(node, layer)
            case nn.Module():
                return self._norm(node, layer)
        if has_parameters:
            raise ModelError(
                f"{self._where(node)} has no rule for its parameters. {_SUPPORTED}: use those."
            )
        return self._operation(node, out, type(module).__name__)

    def _conv(self, node: fx.Node, conv: nn.Conv1d | nn.Conv2d, out: Tensor) -> Place:
        source = self._read(node, 1)
        if conv.groups == conv.in_channels == conv.out_channels > 1:
            self._write(node, "depthwise", source, source, out)
            return source
        target = Place(self._spaces.new(str(node.target), conv.out_channels), 1)
        if conv.groups > 1:
            self._spaces.freeze(source.space)
            self._spaces.freeze(target.space)
        self._write(node, "conv", source, target, out)
        return target

    def _linear(self, node: fx.Node, linear: nn.Linear, out: Tensor) -> Place:
        target = Place(self._spaces.new(str(node.target), linear.out_features), out.ndim - 1)
        self._write(node, "linear", self._read(node, -1), target, out)
        return target

    def _embedding(self, node: fx.Node, table: nn.Embedding, out: Tensor) -> Place:
        tokens = self._spaces.new_frozen(f"{node.target}.tokens", table.num_embeddings)
        target = self._spaces.new_frozen(str(node.target), table.embedding_dim)
        self._write(node, "embedding", Place(tokens, 0), Place(target, out.ndim - 1), out)
        return Place(target, out.ndim - 1)

    def _lstm(self, node: fx.Node, lstm: StackedLstm) -> Place:
        steps = self.env[node.all_input_nodes[0]].shape[1]
        source = self._read(node, -1)
        for k in range(lstm.num_layers):
            rows, hidden = lstm.get_parameter(f"weight_hh_{k}").shape
            # A hidden unit has four rows, one in each gate: neither space can be cut row by row.
            gates = self._spaces.new_frozen(f"{node.target}.gates_{k}", rows)
            state = Place(self._spaces.new_frozen(f"{node.target}.hidden_{k}", hidden), 1)
            for name, read in ((f"weight_ih_{k}", source), (f"weight_hh_{k}", state)):
                self._layer("lstm", f"{node.target}.{name}", None, read, gates, steps)
            source = state
        return source

    def _norm(self, node: fx.Node, norm: nn.Module) -> Place:
        is_batch_norm = isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        axis = self._places[node.all_input_nodes[0]].axis if isinstance(norm, nn.LayerNorm) else 1
        place = self._read(node, axis)
        if not is_batch_norm or place.repeat > 1:
            self._spaces.freeze(place.space)
        tensors = (*norm.named_parameters(), *norm.named_buffers())
        names = tuple(f"{node.target}.{k}" for k, t in tensors if t.is_floating_point())
        self._norms.append((Norm(str(node.target), names, "", not is_batch_norm), place.space))
        return place

    def _read(self, node: fx.Node, axis: int) -> Place:
        """The place of a layer's input, with channels on `axis`."""
        source = node.all_input_nodes[0]
        place, shape = self._places[source], self.env[source].shape
        if place.axis == axis % len(shape):
            return place
        self._spaces.freeze(place.space)
        space = self._spaces.new_frozen(f"<{node.name}.in>", shape[axis])
        return Place(space, axis % len(shape))

    def _write(self, node: fx.Node, kind: Kind, source: Place, target: Place, out: Tensor) -> None:
        """Note the layer with the module's `weight` and `bias`."""
        name = str(node.target)
        has_bias = getattr(self.module.get_submodule(name), "bias", None) is not None
        bias = f"{name}.bias" if has_bias else None
        positions = out.numel() // out.shape[target.axis] // EXAMPLES
        self._layer(kind, f"{name}.weight", bias, source, target.space, positions)

    def _layer(
        self, kind: Kind, weight: str, bias: str | None, source: Place, target: int, positions: int
    ) -> None:
        shape = tuple(self.module.get_parameter(weight).shape)
        layer = Layer(
            name=weight.removesuffix(".weight"),
            kind=kind,
            weight=weight,
            bias=bias,
            shape=shape,
            source="",
            repeat=source.repeat,
            target="",
            macs=0 if kind == "embedding" else math.prod(shape) * positions,
        )
        self._layers.append((layer, source.space, target))

    def _operation(self, node: fx.Node, out: Tensor, name: str) -> Place:
        inputs = [n for n in node.all_input_nodes if n in self._places]
        name = name.replace("_", "").lower()
        if len(inputs) == 1:
            place, shape = self._places[inputs[0]], self.env[inputs[0]].shape
            if name in {"flatten", "view", "reshape", "squeeze"}:
                place = _reshaped(place, shape, out.shape) or self._opaque(node, out)
            elif not _keeps_channels(node, name, place, shape, out.shape):
                place = self._opaque(node, out)
            return place
        if name in {"add", "iadd", "sub", "isub"} and len(inputs) == 2:
            (a, b), shapes = (self._places[n] for n in inputs), {self.env[n].shape for n in inputs}
            if len(shapes) == 1 and a[1:] == b[1:]:
                self._spaces.join(a.space, b.space)
                return a
        return self._opaque(node, out)

    def _opaque(self, node: fx.Node, out: Tensor, name: str | None = None) -> Place:
        """The place of a result of which nothing is known: a frozen space, as are the inputs'."""
        self._freeze_inputs(node)
        axis = 1 if out.ndim > 1 else 0
        size = out.shape[axis] if out.ndim else 1
        return Place(self._spaces.new_frozen(name or f"<{node.name}>", size), axis)

    def _freeze_inputs(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source in self._places:
                self._spaces.freeze(self._places[source].space)

    def _where(self, node: fx.Node) -> str:
        if node.op != "call_module":
            return f"operation {node.name!r} of the model"
        kind = type(self.module.get_submodule(str(node.target))).__name__
        return f"layer {str(node.target)!r} ({kind})"


def _reshaped(place: Place, before: torch.Size, after: torch.Size) -> Place | None:
    """The place after a change of shape, if the channels still lie together on axis 1."""
    if place.axis != 1 or len(after) < 2 or before[0] != after[0]:
        return None
    if len(after) == 2:
        return place._replace(repeat=place.repeat * after[1] // before[1])
    return place if before[1] == after[1] else None


def _keeps_channels(
    node: fx.Node, name: str, place: Place, before: torch.Size, after: torch.Size
) -> bool:
    """Whether an operation leaves channels where they are, and channels of zeros zero."""
    argument = dict(enumerate(node.args)) | node.kwargs
    if name in _POOLS:
        return place.axis == 1 and len(before) > 2
    if name in {"mean", "sum", "amax"}:
        dims = argument.get("dim", argument.get(1))
        dims = dims if isinstance(dims, tuple | list) else (dims,)
        return place.axis == 1 and all(isinstance(d, int) and d % len(before) > 1 for d in dims)
    if name == "pad":
        fill = argument.get("value", argument.get(3))
        return not fill and after[place.axis] == before[place.axis]
    if name in {"div", "truediv"}:
        return isinstance(node.args[0], fx.Node)
    return name in _POINTWISE or name == "mul"
