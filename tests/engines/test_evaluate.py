"""What an evaluation adds to scores: the support against a planted truth."""

import torch

from fedsieve.engines.evaluate import discovery
from fedsieve.models.linear import Linear, Mlp
from fedsieve.models.task import ModelTask

TRUTH = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0], [1.0, 0.0]])  # 3 of 8


def graph(model):
    return ModelTask(lambda: model.build((4,), 2), "classes", (4,)).graph


def test_true_discovery_and_recall_of_a_hand_made_support():
    weight = torch.tensor([[0.3, 0.1, 0.0, 0.0], [0.0, 2.0, 0.2, 0.1]])  # 5, of which 2 are true
    assert discovery({"fc.weight": weight}, graph(Linear()), TRUTH) == (2 / 5, 2 / 3)


def test_an_empty_support_has_discovered_nothing():
    assert discovery({"fc.weight": torch.zeros(2, 4)}, graph(Linear()), TRUTH) == (0, 0)


def test_without_a_truth_or_with_a_deep_model_there_is_nothing_to_compare():
    weight = {"fc.weight": torch.ones(2, 4)}
    assert discovery(weight, graph(Linear()), None) is None
    assert discovery(weight, graph(Mlp((3,))), TRUTH) is None
    assert discovery(weight, graph(Linear()), TRUTH[:3]) is None
