"""What every method must do, for options under which clients keep, hear or send other things."""

import pytest

import fedsieve
from small import SETTINGS, same_in_a_pool, same_when_resumed

VARIANTS = {
    "broadcasts to all": {"method": "spafl", "preset": "paper", "epochs": 2},
    "changes in place of gradients": {"method": "vardrop", "preset": "paper", "local_steps": 2},
    "late parcels": {"method": "vardrop", "preset": "paper", "async_staleness": 1},
    "masks after a warm-up": {
        "method": "vardrop",
        "preset": "paper",
        "warmup": 2,
        "log_variance": -5.0,
    },
    "a sampled cohort with masks": {"method": "vardrop", "warmup": 1, "log_variance": -5.0},
    "gradients of gates": {"method": "flops", "preset": "paper", "hold": 2, "scale_from": 1},
    "from the first round at its density": {"method": "flops_pa", "preset": "paper"},
    "as sparse as the prior": {"method": "fedsparse", "preset": "paper"},
    "personal masks of channels": {
        "method": "sub_fedavg",
        "structure": "hybrid",
        "model": "resnet8",
        "steps": 2,
        "gate": 0.0,
    },
    "personal masks that start anew": {"method": "lotteryfl", "preset": "code", "gate": 0.0},
    "a part of the warm start for whoever has none": {
        "method": "lg_fedavg",
        "warm_start": 1,
        "scored": "own",
    },
    "votes of drawn bits": {"method": "fedpm", "votes": "drawn"},
    "one shot": {"method": "pfnm", "preset": "paper"},
}
variants = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())


@variants
def test_in_line_equals_pool_bit_for_bit(settings):
    same_in_a_pool(settings)


@variants
def test_resumed_equals_uninterrupted_bit_for_bit(settings, tmp_path):
    same_when_resumed(settings, tmp_path / "run")


def test_some_parcels_are_late_and_some_were_on_their_way_at_the_interrupt():
    """Else the variant would be the default: whoever waits trains nothing in that round."""
    rows = fedsieve.run(**SETTINGS | VARIANTS["late parcels"]).rows
    whole = rows[0].macs_dense  # in the first round all train
    assert all(0 < row.macs_dense < whole for row in rows[1:])
