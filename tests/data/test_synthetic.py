"""Synthetic data: the planted truth, the noise and the correlation are what was asked for."""

import pytest
import torch

from fedsieve.core.errors import ConfigError
from fedsieve.core.keys import fold
from fedsieve.data.sources.registry import load
from fedsieve.data.sources.synthetic import Synthetic

KEY = fold(0, "data")


@pytest.fixture(scope="module")
def values():
    return Synthetic(task="values", rows=4000, features=200, correlation=0.7, snr=5).draw(KEY)


def test_truth_holds_the_asked_number_of_signs(values):
    assert values.truth.shape == (200, 1)
    assert sorted(values.truth.unique().tolist()) == [-1, 0, 1]
    assert values.truth.count_nonzero() == 10  # 0.05 * 200


def test_density_is_counted_over_all_columns():
    data = Synthetic(rows=50, features=100, classes=3, density=0.29).draw(KEY)
    assert data.truth.count_nonzero() == 87  # floor(0.29 * 300)


def test_neighbouring_features_correlate_as_powers_of_c(values):
    sample = torch.corrcoef(values.x.T)
    error = 1 / 4000**0.5  # of one correlation; 200 are averaged, but neighbours are dependent
    for gap in range(3):
        assert sample.diagonal(gap).mean() == pytest.approx(0.7**gap, abs=2 * error)
    assert values.x.var().item() == pytest.approx(1, abs=0.02)


def test_noise_has_the_asked_share_of_the_signal(values):
    signal = values.x @ values.truth
    noise = values.scores - signal
    # A variance estimate from n normal draws has relative error sqrt(2 / n).
    expected = signal.square().mean() / 5
    assert noise.square().mean() == pytest.approx(expected.item(), rel=5 * (2 / 4000) ** 0.5)


def test_targets_are_made_of_the_scores(values):
    assert values.y.equal(values.scores[:, 0])
    labels = Synthetic(task="labels", classes=1, rows=100, features=20).draw(KEY)
    assert labels.y.equal((labels.scores > 0).float())
    assert labels.y.shape == (100, 1)
    classes = Synthetic(rows=100, features=20, classes=4).draw(KEY)
    assert classes.y.equal(classes.scores.argmax(1))


def test_test_rows_are_extra_rows_of_the_same_truth(values):
    assert len(values.x_test) == 2000
    residual = values.y_test - (values.x_test @ values.truth)[:, 0]
    train_residual = values.y - (values.x @ values.truth)[:, 0]
    assert residual.std() == pytest.approx(train_residual.std().item(), rel=0.1)
    assert not values.x_test[:10].equal(values.x[:10])


def test_equal_keys_give_equal_data_and_others_do_not():
    spec = "synthetic(task=values, rows=30, features=20)"
    first, again = load(spec, None, KEY), load(spec, None, KEY)
    assert first.x.equal(again.x)
    assert first.y.equal(again.y)
    other = load(spec, None, fold(1, "data"))
    assert not first.x.equal(other.x)
    assert not first.truth.equal(other.truth)


@pytest.mark.parametrize(
    "text",
    [
        "synthetic(rows=0)",
        "synthetic(density=0)",
        "synthetic(density=1.5)",
        "synthetic(snr=0)",
        "synthetic(correlation=2)",
        "synthetic(classes=1)",
        "synthetic(task=ranks)",
        "synthetic(task=values, features=10, density=0.05)",
    ],
)
def test_options_that_cannot_work_are_refused(text):
    with pytest.raises(ConfigError, match="synthetic"):
        load(text, None, KEY)
