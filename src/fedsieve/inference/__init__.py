"""The probabilistic half: priors, spike and slab, variational posteriors."""
