"""Training FLOPs of FedAvg in the SpaFL comparison, recomputed from the layer graphs.

Symbols  T rounds, K of N clients in a round, E epochs, n examples of a client; multiply-accumulates
         of three passes, as a mean over clients.
Differs  printed figures come from runs, in which drawn clients hold more or fewer than n examples:
         about 1 % from seed to seed.
"""

from decimal import Decimal

from fedsieve.core.graph import LayerGraph
from fedsieve.recipes.figure import Calculated, Figure
from fedsieve.recipes.papers.sizes import COLOUR32, GREY28, sizes
from fedsieve.recipes.recipe import register

N, K = 100, 10
DRAWN = "clients drawn at random hold more or fewer examples than the mean"


def figures() -> tuple[Figure, ...]:
    """FedAvg on four models; exact agreement is not to be had, 1 % is."""
    cnn7 = sizes("cnn7", COLOUR32, 10).task.graph
    halved = "fits with the convolutions before pooling counted at the size after it (next line)"
    found = []
    for name, macs, examples, epochs, rounds, printed, note in (
        ("lenet5_caffe", _macs("lenet5_caffe", GREY28, 10), 600, 3, 500, "6.2044e11", DRAWN),
        ("cnn7", cnn7.macs, 500, 3, 500, "7.4729e12", halved),
        ("cnn7, counted after pooling", _pooled(cnn7), 500, 3, 500, "7.4729e12", DRAWN),
        ("resnet8", _macs("resnet8", COLOUR32, 100), 500, 2, 500, "1.938e12", ""),
        ("resnet18", _macs("resnet18", COLOUR32, 100), 500, 2, 1000, "1.6626e14", DRAWN),
    ):
        ours = Decimal(3 * macs * epochs * examples * rounds * K) / N
        found.append(
            Figure(
                label=f"FedAvg, {name}",
                formula=f"3 MAC E n T K / N, MAC = {macs:,}, E = {epochs}, T = {rounds}",
                unit="MACs",
                ours=ours,
                printed=printed,
                between=(ours * Decimal("0.99"), ours * Decimal("1.01")),
                source="SpaFL, tables of results",
                note=note,
            )
        )
    return tuple(found)


def _macs(model: str, input_shape: tuple[int, ...], num_outputs: int) -> int:
    return sizes(model, input_shape, num_outputs).task.graph.macs


def _pooled(cnn7: LayerGraph) -> int:
    """MACs with the convolutions in front of a 2x2 pooling at a quarter of their positions."""
    return sum(x.macs // 4 if x.name in {"conv2", "conv4"} else x.macs for x in cnn7.layers)


register(
    Calculated(
        name="dense_flops",
        title="Training FLOPs of FedAvg by formula",
        source="SpaFL paper",
        count=5,
        figures=figures,
    )
)
