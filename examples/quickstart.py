"""Dense against sparse in two calls, on digits that come with scikit-learn."""

from typing import Any

import fedsieve


def main(rounds: int = 20) -> None:
    """Train FedAvg and FedIter-HT on the same clients and compare what they cost."""
    common: dict[str, Any] = {"rounds": rounds, "epochs": 3, "lr": 0.01, "optimiser": "adam"}
    dense = fedsieve.run(method="fedavg", **common)
    sparse = fedsieve.run(method="fediter_ht", target_density=0.2, **common)
    for result in (dense, sparse):
        summary = result.summary
        megabytes = (summary.up_bytes + summary.down_bytes) / 1e6
        print(
            f"{summary.method:10}  accuracy {summary.global_accuracy:.3f}"
            f"  density {summary.density:.2f}  sent {megabytes:5.2f} MB"
        )


if __name__ == "__main__":
    main()
