"""Neural matching by loops over pairs, with unshifted sums and no sharing.

Formulas are those of specification neural_matching, sections 3 to 8. Atoms are lists of (client,
neuron); every figure is computed from their members each time it is needed. The penalty is read off
its definition T_i = sum_s sum_d k_sd (theta_id - m0_d)^2.
"""

import itertools
import math

import numpy as np
from scipy.optimize import linear_sum_assignment

STIFFNESS = {
    "kl": lambda lam0, lam: lam,
    "reverse_kl": lambda lam0, lam: lam0,
    "jeffreys": lambda lam0, lam: 0.5 * lam0 + 0.5 * lam,
    "bhattacharyya": lambda lam0, lam: 1 / (1 / lam0 + 1 / lam),
    "wasserstein": lambda lam0, lam: np.ones_like(lam),
}


class Layer:
    """The atoms of one layer under one set of hyper-parameters."""

    def __init__(self, neurons, lams, m0, lam0, **settings):
        self.neurons, self.lams, self.m0, self.lam0 = neurons, lams, m0, lam0
        self.gamma0 = settings.get("gamma0", 1.0)
        self.eps = settings.get("eps", 0.0)
        self.kl = settings.get("kl", "plugin")
        self.stiffness = STIFFNESS[settings.get("divergence", "kl")]
        self.is_code = settings.get("preset", "paper") == "pfnm-code"
        self.S = len(neurons)

    def theta(self, members):
        """The posterior mean of an atom with these members."""
        eta, total = self.lam0 * self.m0, self.lam0.copy()
        for s, j in members:
            eta = eta + self.lams[s] * self.neurons[s][j]
            total = total + self.lams[s]
            if self.kl == "joint":
                pull = self.eps * self.stiffness(self.lam0, self.lams[s])
                eta, total = eta + pull * self.m0, total + pull
        return eta / total

    def fit(self, members):
        """-2 log of prior and likelihood at theta, plus eps T, less what no label changes.

        sum lam (w - theta)^2 + lam0 (theta - m0)^2 + eps T - sum lam (w - m0)^2, so that an atom
        without members fits with 0.
        """
        theta, value = self.theta(members), 0.0
        value += (self.lam0 * (theta - self.m0) ** 2).sum()
        for s, j in members:
            w, lam = self.neurons[s][j], self.lams[s]
            value += (lam * (w - theta) ** 2).sum() - (lam * (w - self.m0) ** 2).sum()
            value += self.eps * (self.stiffness(self.lam0, lam) * (theta - self.m0) ** 2).sum()
        return value

    def odds(self, n):
        n = min(n, 10) if self.is_code else n
        return (1 if self.is_code else 2) * math.log(n / (self.S - n))

    def cost(self, atoms, s):
        """(M) + (KM) and (N) + (KN), entry by entry."""
        width = len(self.neurons[s])
        new = min(width, max(700 - len(atoms), 1)) if self.is_code else width
        C = np.empty((width, len(atoms) + new))
        for j in range(width):
            for i, members in enumerate(atoms):
                with_j = self.fit([*members, (s, j)])
                C[j, i] = with_j - self.fit(members) - self.odds(len(members))
            alone = self.fit([(s, j)])
            for k in range(1, new + 1):
                C[j, len(atoms) + k - 1] = (
                    alone - 2 * math.log(self.gamma0 / self.S) + 2 * math.log(k)
                )
        return C

    def place(self, atoms, s):
        columns = linear_sum_assignment(self.cost(atoms, s))[1]
        after = [list(members) for members in atoms]
        for j, column in enumerate(columns):
            if column < len(atoms):
                after[column].append((s, j))
            else:
                after.append([(s, j)])
        return after

    def energy(self, atoms):
        value = 0.0
        for members in atoms:
            value += self.fit(members) - 2 * math.log(self.gamma0 / self.S)
            value -= sum(self.odds(m) for m in range(1, len(members)))
        return value

    def objective(self, atoms, s):
        """F + 2 log(K_s!)."""
        alone = sum(len(members) == 1 and members[0][0] == s for members in atoms)
        return self.energy(atoms) + 2 * math.log(math.factorial(alone))

    def match(self, order, start=None):
        """Atoms after the greedy pass (or from `start`) and the sweeps of `order`."""
        atoms = start
        if atoms is None:
            first, *others = sorted(range(self.S), key=lambda s: (-len(self.neurons[s]), s))
            atoms = [[(first, j)] for j in range(len(self.neurons[first]))]
            for s in others:
                atoms = self.place(atoms, s)
        for s in itertools.chain.from_iterable(order):
            left = [[m for m in members if m[0] != s] for members in atoms]
            atoms = self.place([members for members in left if members], s)
        return atoms

    def labels(self, atoms, s):
        found = np.empty(len(self.neurons[s]), int)
        for i, members in enumerate(atoms):
            for t, j in members:
                if t == s:
                    found[j] = i
        return found


def shares(counts):
    counts = np.asarray(counts, float)
    f = np.empty_like(counts)
    for k in range(counts.shape[1]):
        total = counts[:, k].sum()
        f[:, k] = counts[:, k] / total if total else 1 / len(counts)
    return f


def rows_of(net, layer, block, above):
    """Neurons as [incoming,] bias, outgoing, these in the columns of the atoms `above`."""
    out, rows = net[2 * layer + 2], []
    for j in range(len(net[2 * layer + 1])):
        row = list(net[0][:, j]) if layer == 0 else []
        row.append(net[2 * layer + 1][j])
        for line in out[j * block : (j + 1) * block]:
            if above is None:
                row += list(line)
                continue
            labels, size = above
            padded = [0.0] * size
            for position, value in zip(labels, line, strict=True):
                padded[position] = value
            row += padded
        rows.append(row)
    return np.array(rows)


def layers_of(clients, class_counts, orders, *, padding="full", blocks=None, **settings):
    """(assignments, network); blocks[l] rows of W_l belong to one neuron that sends.

    Numbers among the settings are for all hidden layers, or one for each.
    """
    S, L, D = len(clients), len(clients[0]) // 2 - 1, len(clients[0][0])
    f = shares(class_counts)
    blocks = blocks or [1] * (L + 1)

    def of(layer, name, default):
        return float(np.broadcast_to(settings.get(name, default), L)[layer])

    assignments, thetas = [None] * L, [None] * L
    for layer in reversed(range(L)):
        neurons, lams, block = [], [], blocks[layer + 1]
        sigma2, sigma0_2 = of(layer, "sigma2", 1.0), of(layer, "sigma0_2", 1.0)
        for s, net in enumerate(clients):
            above = None if layer == L - 1 else (assignments[layer + 1][s], len(thetas[layer + 1]))
            rows, lam = rows_of(net, layer, block, above), []
            lam += [1 / sigma2] * (D + 1 if layer == 0 else 1)
            if layer == L - 1:
                lam += [share / sigma2 for share in f[s]] * block
            else:
                held = set(assignments[layer + 1][s].tolist())
                full = padding == "full"
                lam += [
                    1 / sigma2 if full or i in held else 0.0 for i in range(len(thetas[layer + 1]))
                ] * block
            neurons.append(rows)
            lams.append(np.array(lam))
        m0 = np.zeros(len(lams[0]))
        m0[D if layer == 0 else 0] = 0.1
        own = {"gamma0": of(layer, "gamma0", 1.0), "eps": of(layer, "eps", 0.0)}
        one = Layer(neurons, lams, m0, np.full(len(m0), 1 / sigma0_2), **{**settings, **own})
        atoms = one.match(orders[layer])
        assignments[layer] = [one.labels(atoms, s) for s in range(S)]
        thetas[layer] = np.array([one.theta(members) for members in atoms])
    network = [thetas[0][:, :D].T, thetas[0][:, D]]
    for layer in range(L):
        sent = thetas[layer][:, D + 1 :] if layer == 0 else thetas[layer][:, 1:]
        network.append(sent.reshape(len(sent) * blocks[layer + 1], -1))
        if layer < L - 1:
            network.append(thetas[layer + 1][:, 0])
    sigma2, sigma0_2 = of(L - 1, "sigma2", 1.0), of(L - 1, "sigma0_2", 1.0)
    top = sum(f[s] * net[-1] / sigma2 for s, net in enumerate(clients))
    network.append((top + 0.1 / sigma0_2) / (1 / sigma0_2 + f.sum(0) / sigma2))
    return assignments, network
