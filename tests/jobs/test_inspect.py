"""What a run of neural matching left is read back as it was, and shown."""

import numpy as np
import pytest
import torch

import fedsieve
from fedsieve.cli.matching import show_matching
from fedsieve.engine.run_folder import RunFolder
from fedsieve.jobs.config import make, read_toml
from fedsieve.jobs.inspect import is_matching, network_accuracies, read_matched
from fedsieve.jobs.job import build
from fedsieve.matching import match_networks
from fedsieve.matching.layout import layout_of
from fedsieve.methods.pfnm import State

JOB = {
    "method": "pfnm",
    "dataset": "digits",
    "model": "mlp(hidden=[8, 6])",
    "clients": 4,
    "cohort": 3,
    "rounds": 2,
    "epochs": 1,
    "gamma0": 50.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("pieces") / "run"
    fedsieve.run(**JOB, out=out)
    return out


def test_the_objective_shown_is_the_energy_of_the_networks_that_were_matched(folder):
    matched = read_matched(folder)
    job, kept = build(make(read_toml(folder / "config.toml"))), RunFolder(folder)
    layout = layout_of(job.method.task.graph, "test")
    networks = [layout.network(kept.state(State, c).weights) for c in matched.clients]
    counts = []
    for client in matched.clients:
        y = torch.cat([batch.y for batch in job.federation.batches(client).ordered()])
        counts.append(np.bincount(y, minlength=10))
    still = [np.zeros((0, 3), int)] * 2
    again = match_networks(networks, counts, job.method.settings, still, start=matched.labels)
    assert matched.rounds == 2
    for shown, layer in zip(matched.energies, again.layers, strict=True):
        assert shown == pytest.approx(layer.energy, abs=1e-6)


def test_pieces_are_the_clients_networks_and_their_parts(folder):
    whole, found = network_accuracies(folder)
    assert [piece.client for piece in found] == read_matched(folder).clients
    assert all(0 <= share <= 1 for piece in found for share in piece[1:])
    assert 0 < whole <= 1


def test_inspect_shows_the_table_and_draws_the_picture(folder, tmp_path, capsys):
    assert is_matching(folder)
    show_matching(folder, tmp_path)
    shown = capsys.readouterr().out
    assert "matching after round 2, 3 clients" in shown
    matched = read_matched(folder)
    assert [len(falls) for falls in matched.falls] == [3 * 3] * 2  # later_sweeps of 3 clients
    assert min(map(min, matched.falls)) > -1e-9
    assert f"layer 1: 9 re-matchings lowered the objective by {sum(matched.falls[0]):.2f}" in shown
    for layer, width in enumerate((8, 6)):
        atoms = 1 + max(own.max() for own in matched.labels[layer])
        assert f"{atoms:>6}  {matched.energies[layer]:>12.2f}" in shown
        picture = (tmp_path / f"layer{layer + 1}.svg").read_text()
        assert picture.count("<rect") == 3 * width


def test_other_runs_are_no_matching(tmp_path):
    assert not is_matching(tmp_path)
