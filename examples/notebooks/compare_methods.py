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
# # Compare methods
#
# Four ways to send less, on the same clients: all weights, all weights at 8 bits, a tenth of the
# weights, and one threshold per neuron or filter.

# %%
import os
import tempfile
from pathlib import Path
from typing import Any

import fedsieve

ROUNDS = int(os.environ.get("FEDSIEVE_ROUNDS", "30"))
runs = Path(tempfile.mkdtemp(prefix="fedsieve-"))

# %% [markdown]
# Runs with `out` are kept in a folder: rows, messages, checkpoints and the model.

# %%
methods: dict[str, dict[str, Any]] = {
    "dense": {"method": "fedavg"},
    "8 bits": {"method": "fedavg", "wire": "int8", "error_feedback": True},
    "a tenth": {"method": "fediter_ht"},
    "thresholds": {"method": "spafl"},
}
for name, settings in methods.items():
    fedsieve.run(**settings, rounds=ROUNDS, out=runs / name)

# %% [markdown]
# ## Side by side
#
# `compare` takes results or folders. Its first line is the answer; bytes are totals, up and down
# together. SpaFL has no global model, so its score is the mean over clients of their own models.

# %%
found = fedsieve.compare(*(runs / name for name in methods))
found

# %% [markdown]
# It is a table like any other: `found.rows` is a list of dicts, `found["MB"]` a column, and
# `found.to_pandas()` a DataFrame where pandas is installed.

# %%
for row in found:
    print(f"{row['run']:36} {row['score']:.3f} {row['MB']:7.2f} MB")

# %% [markdown]
# ## The whole story
#
# A report is one file that needs no network: the same answer, and every figure behind it.

# %%
from fedsieve.report import page

page.write([runs / name for name in methods], runs / "report.html")

# %% [markdown]
# A run that was kept comes back as it was.

# %%
fedsieve.load(runs / "thresholds").plot()
