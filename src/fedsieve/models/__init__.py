"""Models: architectures of the papers, the trace of a module's layer graph, and tasks.

One rule holds for BatchNorm everywhere: `running_mean` and `running_var` are entries of Params like
any tensor, listed in `Task.buffers`. They travel with the model and are averaged with the weights,
or stay in a personal method's State. Counters of batches are not kept.
"""
