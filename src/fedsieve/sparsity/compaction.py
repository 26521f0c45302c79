"""Channels a mask leaves in use, and the smaller tensors of a model that has these channels alone.

A task runs tensors of any width, so that what `compact` returns is a model: it trains and predicts
like the masked one, in less time. `restore` puts its tensors back among the whole ones, and
`smallest` goes furthest: channels that are constant are folded into biases first.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from fedsieve.core.graph import Layer, LayerGraph
from fedsieve.core.message import Mask, Params
from fedsieve.core.method import Task
from fedsieve.sparsity import masks

Indices: TypeAlias = dict[str, tuple[Tensor, ...]]  # by tensor, for each of its first axes


def alive_channels(graph: LayerGraph, mask: Mask) -> dict[str, Tensor]:
    """For each space, which channels must stay; those of a space that cannot be cut all do.

    A channel is dead if no kept weight reads it, or if no kept weight writes it and neither a bias
    nor a normalisation can make it non-zero. Weights from and to dead channels count as not kept,
    again until nothing changes. Tensors that `mask` does not name are kept whole.
    """
    # 0 and 1 as floats: a product of matrix and vector counts links many times faster than `any`.
    alive = {s.name: torch.ones(s.size) for s in graph.spaces}
    cuttable = {s.name for s in graph.spaces if s.is_cuttable}
    # A depthwise convolution maps channel i to itself: it neither writes to nor reads for another.
    links = [
        (layer, _links(graph, layer, mask))
        for layer in graph.layers
        if layer.kind != "depthwise" and not cuttable.isdisjoint((layer.source, layer.target))
    ]
    shifted = _shifted(graph, mask)
    is_changing = True
    while is_changing:
        read = {name: torch.zeros_like(alive[name]) for name in cuttable}
        written = {name: shifted[name].clone() for name in cuttable}
        for layer, link in links:
            if layer.source in cuttable:
                read[layer.source] += alive[layer.target] @ link
            if layer.target in cuttable:
                written[layer.target] += link @ alive[layer.source]
        left = {name: alive[name] * (read[name] > 0) * (written[name] > 0) for name in cuttable}
        is_changing = any(not torch.equal(left[name], alive[name]) for name in cuttable)
        alive |= left
    return {name: kept > 0 for name, kept in alive.items()}


def written_channels(graph: LayerGraph, mask: Mask) -> dict[str, Tensor]:
    """For each space, which channels are not 0 for every input; masks may be one value per row.

    Behind a ReLU the others get no gradient either, nor do the weights from and to them, so that
    cutting them out changes no step of training.
    """
    cuttable = {s.name for s in graph.spaces if s.is_cuttable}
    shifted = _shifted(graph, mask)
    written = {
        s.name: shifted[s.name] if s.name in cuttable else torch.ones(s.size) for s in graph.spaces
    }
    for layer in graph.layers:  # sources come before targets
        if layer.target not in cuttable or not written[layer.source].any():
            continue
        kept = mask.get(layer.weight)
        rows = 1 if kept is None else kept.flatten(1).any(1)
        written[layer.target] = written[layer.target] + rows
    return {name: count > 0 for name, count in written.items()}


def norm_masks(graph: LayerGraph, mask: Mask) -> Mask:
    """For tensors of normalisations, which of their channels some kept weight or bias writes.

    Without the others a pruned channel is 0 behind its normalisation, too, and can be cut.
    """
    tensors = {n: norm.space for norm in graph.norms for n in norm.tensors}
    written = written_channels(graph, mask | dict.fromkeys(tensors, torch.tensor(data=False)))
    return {n: written[space] for n, space in tensors.items()}


def compact(graph: LayerGraph, params: Params, alive: Mask) -> Params:
    """The tensors cut down to the channels that `alive` keeps in each space.

    Outputs stay what they are if `alive` is at least what `alive_channels` says of a mask outside
    of which the weights are 0. A space left without a channel keeps its first one; one with a
    depthwise convolution, whose tensors do not say its number of groups, keeps them all.
    """
    return take(params, indices(graph, alive))


def take(params: Params, kept: Indices, axes: tuple[int, ...] = (0, 1)) -> Params:
    """The tensors with the indices that stay; `axes` leaves out outputs (0) or inputs (1).

    A tensor under the name of a weight with one value for each of its rows is cut by rows. Tensors
    that keep all they have are not copied.
    """
    small = {}
    for name, whole in params.items():
        value = whole
        for axis, index in zip(range(whole.dim()), kept.get(name, ()), strict=False):
            if axis in axes and len(index) < value.shape[axis]:
                value = value.index_select(axis, index)
        small[name] = value
    return small


def indices(graph: LayerGraph, alive: Mask) -> Indices:
    """For each tensor with channels, the indices that stay on its first axes."""
    whole = {layer.target for layer in graph.layers if layer.kind == "depthwise"}
    index = {}
    for space in graph.spaces:
        stays = torch.ones(space.size) if space.name in whole else alive[space.name]
        places = stays.nonzero()[:, 0]
        index[space.name] = places if len(places) else torch.zeros(1, dtype=torch.int64)
    kept: Indices = {}
    for layer in graph.layers:
        if layer.kind == "embedding":
            continue
        rows, source = index[layer.target], index[layer.source]
        columns = (source[:, None] * layer.repeat + torch.arange(layer.repeat)).flatten()
        kept[layer.weight] = (rows,) if layer.kind == "depthwise" else (rows, columns)
        if layer.bias is not None:
            kept[layer.bias] = (rows,)
    for norm in graph.norms:
        kept |= dict.fromkeys(norm.tensors, (index[norm.space],))
    return kept


def restore(graph: LayerGraph, small: Params, alive: Mask, whole: Params) -> Params:
    """A copy of `whole` with the values of `small` where `compact` had taken them from."""
    params = {n: value.clone() if n in small else value for n, value in whole.items()}
    kept = indices(graph, alive)
    for name, value in small.items():
        axes = kept.get(name, ())
        if not axes:
            params[name] = value
        elif value.dim() == 1 or len(axes) == 1:
            params[name][axes[0]] = value
        else:
            rows, columns = axes
            params[name][rows[:, None], columns] = value
    return params


def smallest(task: Task, params: Params) -> Params:
    """A model with equal outputs, without all that can be cut from this one.

    One whose widths are not the task's own, such as a matched network, is left as it is.
    """
    if any(params[x.weight].shape != x.shape for x in task.graph.layers):
        return params
    folded = fold_constants(task, params)
    alive = alive_channels(task.graph, masks.nonzero(folded, task.graph.maskable))
    return compact(task.graph, folded, alive)


def fold_constants(task: Task, params: Params) -> Params:
    """Equal outputs with fewer channels read: what constant channels add goes into biases.

    A channel whose weights are all 0 carries what a bias or a normalisation gives it, whatever the
    input. Its readers take that into their own bias and 0 in place of their weights, again until
    nothing changes. Where this would not be exact, at a border of zeros or without a bias, the
    channel stays.
    """
    folded = {name: value.clone() for name, value in params.items()}
    is_folding = True
    while is_folding:
        constant, read = _constant_channels(task.graph, folded), task.probe(folded)
        is_folding = any(
            _fold(layer, folded, constant[layer.source], read[layer.weight])
            for layer in task.graph.layers
            if layer.source in constant and layer.kind in {"linear", "conv"}
        )
    return folded


def _constant_channels(graph: LayerGraph, params: Params) -> dict[str, Tensor]:
    """For each space that can be cut, which channels no weight writes."""
    depthwise = {layer.target for layer in graph.layers if layer.kind == "depthwise"}
    constant = {
        s.name: torch.ones(s.size, dtype=torch.bool)
        for s in graph.spaces
        if s.is_cuttable and s.name not in depthwise
    }
    for layer in graph.layers:
        if layer.target in constant:
            constant[layer.target] &= params[layer.weight].flatten(1).abs().amax(1) == 0
    return constant


def _fold(layer: Layer, params: Params, constant: Tensor, read: Tensor) -> bool:
    """Move what constant channels give a layer from its weight to its bias; whether any was."""
    weight = params[layer.weight]
    taps = weight.double().flatten(2).sum(2) if weight.dim() > 2 else weight.double()
    values = read.transpose(0, 1).flatten(1) if layer.kind == "conv" else read.flatten(0, -2).T
    is_level = values.amax(1) == values.amin(1)
    value = values[:, 0].double()
    is_exact = is_level & ((value == 0) | (layer.bias is not None and not layer.is_padded))
    columns = constant.repeat_interleave(layer.repeat) & is_exact
    columns &= weight.transpose(0, 1).flatten(1).abs().amax(1) > 0
    if not columns.any():
        return False
    if layer.bias is not None:
        params[layer.bias] += (taps[:, columns] @ value[columns]).float()
    weight[:, columns] = 0
    return True


def _links(graph: LayerGraph, layer: Layer, mask: Mask) -> Tensor:
    """(rows, source channels): whether any weight between the two is kept."""
    rows, size = layer.shape[0], graph.space[layer.source].size
    if layer.weight not in mask:
        return torch.ones(rows, size)
    return mask[layer.weight].view(torch.uint8).reshape(rows, size, -1).amax(-1).float()


def _shifted(graph: LayerGraph, mask: Mask) -> dict[str, Tensor]:
    """For each space, which channels a bias or a normalisation can make non-zero."""
    shifted = {s.name: torch.zeros(s.size) for s in graph.spaces}
    for layer in graph.layers:
        if layer.bias is not None:
            shifted[layer.target] += mask.get(layer.bias, torch.tensor(data=True))
    for norm in graph.norms:
        named = [mask[n] for n in norm.tensors if n in mask]
        shifted[norm.space] += named[0] if named else 1
    return shifted
