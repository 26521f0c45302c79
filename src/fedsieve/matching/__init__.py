"""Matching of neurons across clients: PFNM, GPI-FNM and their convolutional form.

Numerics alone: no rounds, no messages. `match(clients, class_counts=...)` is the plain entry.
"""

from fedsieve.matching.assign import LayerMatch, Step
from fedsieve.matching.atoms import subnetwork
from fedsieve.matching.network import Settings, match, match_networks, visiting_orders
from fedsieve.matching.result import Matching

__all__ = [
    "LayerMatch",
    "Matching",
    "Settings",
    "Step",
    "match",
    "match_networks",
    "subnetwork",
    "visiting_orders",
]
