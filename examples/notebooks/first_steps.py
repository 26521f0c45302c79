# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # First steps
#
# Twenty clients hold label-skewed parts of the 8x8 digits that come with scikit-learn. A dense and
# a sparse method learn from them, and every byte they send is counted.
#
# Open this file as a notebook with [Jupytext](https://jupytext.readthedocs.io), or run it as a
# script.

# %%
import os

import fedsieve

ROUNDS = int(os.environ.get("FEDSIEVE_ROUNDS", "30"))

# %% [markdown]
# ## A run
#
# Every setting and every option of the method is a keyword, and each has a default that works. A
# bar shows how far the run is (`progress=False` silences it); the result shows itself as a card.

# %%
dense = fedsieve.run(method="fedavg", rounds=ROUNDS)
dense

# %% [markdown]
# The figures behind the card: totals and final scores in `summary`, one row per round in `rows`,
# the global model as a dict of tensors in `model`.

# %%
print(dense.summary.global_accuracy, dense.summary.up_bytes + dense.summary.down_bytes)
print(dense.rows[-1])
print({name: tuple(tensor.shape) for name, tensor in (dense.model or {}).items()})

# %% [markdown]
# ## What would it cost?
#
# `plan` plays the first rounds on scratch space and predicts the rest.

# %%
forecast = fedsieve.plan(method="fediter_ht", rounds=200)
print(f"{forecast.total_bytes / 1e6:.1f} MB, {forecast.total_seconds:.0f} s")

# %% [markdown]
# ## Dense against sparse
#
# FedIter-HT keeps a share of the weights at all times, so both directions shrink.

# %%
sparse = fedsieve.run(method="fediter_ht", rounds=ROUNDS)
both = fedsieve.compare(dense, sparse)
both

# %% [markdown]
# A picture by itself can be saved; `against="rounds"` draws scores over rounds.

# %%
both.plot(against="rounds")
