"""FedOpt: the server takes an optimiser step on the mean difference (FedAdam, FedYogi, ...).

Paper    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2; as EM: one
         gradient M-step (specification fedsparse, section 1).
Symbols  x_t -> server.weights   -Delta_t -> pseudo-gradient   eta -> server_lr   tau -> eps
Differs  Adam and Yogi correct the bias of their moments, as torch does; the paper does not.
         sgd() with server_lr=1 is FedAvg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsieve.core.keys import Key
from fedsieve.core.message import Params
from fedsieve.core.method import register
from fedsieve.core.options import in_range, option
from fedsieve.inference.priors import Gaussian
from fedsieve.methods.em import PointEM, Server
from fedsieve.methods.fedavg import PAPER
from fedsieve.optim.optimisers import Adam, Moments, Optimiser, init_moments, update


@register("fedopt")
@dataclass(frozen=True, kw_only=True)
class FedOpt(PointEM):
    """Federated averaging with an optimiser on the server."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER | {"server_optimiser": "adam"}
    }
    server_optimiser: Optimiser = option(
        Adam(beta1=0.5), "sgd(momentum=0.9), adagrad, yogi or adamax"
    )
    server_lr: float = option(0.01, "eta")
    proximal: float = option(0.0, "tie of the clients, as in fedprox")

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("fedopt: server_lr", self.server_lr, 0, above=True)
        in_range("fedopt: proximal", self.proximal, 0)

    @property
    def prior(self) -> Gaussian:
        return Gaussian(self.proximal)

    def init_server(self, key: Key) -> Server:
        server = super().init_server(key)
        return server._replace(
            moments=init_moments(self.server_optimiser, self.trainable(server.weights))
        )

    def m_step(
        self, server: Server, locals_: Sequence[Params], shares: Sequence[float]
    ) -> tuple[Params, Moments]:
        centre = self.trainable(server.weights)
        gradient = self.prior.pseudo_gradient(centre, locals_, shares)
        return update(self.server_optimiser, centre, gradient, server.moments, self.server_lr)
