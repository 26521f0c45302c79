"""What a run folder keeps of many rounds."""

from itertools import pairwise

import pytest
import torch

from fedsieve.engine.records import MAX_SUPPORTS, kept_supports
from fedsieve.engine.run_folder import RunFolder


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("count", [MAX_SUPPORTS, 100, 300])
def test_of_many_supports_about_evenly_spread_ones_are_kept(tmp_path, count, every):
    folder = RunFolder(tmp_path)
    for number in range(every, count * every + 1, every):
        folder.records.keep_support(number, {"w": torch.tensor([True, False])})
    rounds = [int(path.stem) for path in kept_supports(tmp_path)]
    assert len(rounds) == MAX_SUPPORTS
    assert (rounds[0], rounds[-1]) == (every, count * every)
    even = (rounds[-1] - rounds[0]) / (MAX_SUPPORTS - 1)
    assert max(b - a for a, b in pairwise(rounds)) <= 2 * even
