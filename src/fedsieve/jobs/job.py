"""A job: a configuration with everything it names, loaded, split and built."""

import dataclasses
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedsieve.methods  # noqa: F401 - registers the methods
from fedsieve.core.errors import ConfigError, DataError, ModelError
from fedsieve.core.keys import fold
from fedsieve.core.method import AnyMethod, message_types, method_class
from fedsieve.core.options import construct, read, spell
from fedsieve.data.dataset import Dataset
from fedsieve.data.federation import Federation
from fedsieve.data.partitions.partition import Partition, split
from fedsieve.data.partitions.schemes import PARTITIONS, Natural
from fedsieve.data.sources.registry import load
from fedsieve.jobs.config import Config, method_options
from fedsieve.models.initial import initialised_from
from fedsieve.models.task import ModelTask
from fedsieve.models.zoo.registry import read_model
from fedsieve.robust.aggregation import AGGREGATIONS, check
from fedsieve.robust.attacks import ATTACKS, Group, attacked
from fedsieve.robust.updates import has_updates, read_clip
from fedsieve.wire import feedback
from fedsieve.wire.compressors import KINDS

DEFAULT_CLIENTS, DEFAULT_COHORT = 20, 10
log = logging.getLogger("fedsieve")


@dataclass(frozen=True)
class Job:
    """A configuration with everything it names."""

    config: Config
    method: AnyMethod
    federation: Federation
    partition: Partition
    dataset: Dataset


def build(
    config: Config,
    dataset: Dataset | None = None,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    partition: Partition | None = None,
) -> Job:
    """Load data, split it, build model and method; fills in every `auto`."""
    how = config.partition
    if dataset is None or partition is None:
        dataset, how, partition = split_data(config, dataset)
    factory, model_name = model, config.model
    if factory is None:
        choice = read_model(_model_choice(config, dataset))
        model_name = spell(choice)
        factory = lambda: choice.build(dataset.input_shape, dataset.num_outputs)  # noqa: E731
        _check_memory(factory, model_name)
    if config.init_from is not None:
        factory = initialised_from(Path(config.init_from), factory)
    task = ModelTask(
        factory, dataset.kind, dataset.input_shape, is_tokens=dataset.layout == "tokens"
    )
    method = construct(method_class(config.method), config.options, config.method, task=task)
    method = method.in_run(config.rounds)
    _check_trust(config, method)
    if config.init_from is not None and not method.takes_start:
        raise ConfigError(
            f"init_from: clients of {config.method} draw their own first networks. Leave it out."
        )
    partition = dataclasses.replace(partition, is_pooled=method.partition == "pooled")
    federation = Federation(
        dataset,
        partition,
        config.batch_size,
        config.epochs,
        config.steps,
        config.drop_last,
        score_on=config.score_on,
    )
    if config.attack is not None:
        lie = read(config.attack, ATTACKS, "attack")
        group = Group(config.seed, config.rounds, config.attackers, federation)
        method = attacked(method, lie, group)
    everyone, wanted = federation.num_clients, config.cohort or DEFAULT_COHORT
    asks_all = all(method.cohort(wanted, done).size is None for done in range(config.rounds))
    cohort = everyone if asks_all else min(wanted, everyone)
    if config.cohort not in {None, cohort}:
        why = f"there are no more than {everyone} clients, all take part"
        if partition.is_pooled:
            why = "this method trains on all data in one place"
        elif asks_all:
            why = f"this method asks every client in every round, all {everyone} take part"
        log.warning("cohort=%d is not used: %s.", config.cohort, why)
    complete = dataclasses.replace(
        config,
        model=model_name,
        partition=how,
        clients=len(partition.train),
        cohort=cohort,
        min_replies=None if config.min_replies is None else min(config.min_replies, cohort),
        options={n: getattr(method, n) for n in method_options(type(method))},
    )
    return Job(complete, method, federation, partition, dataset)


def canonical(config: Config, spelled: Callable[[Any], Any] = spell) -> Config:
    """The configuration with partition, model and rules spelled out in full, where named."""
    partition, model = config.partition, config.model
    if partition != "auto":
        partition = str(spelled(read(partition, PARTITIONS, "partition")))
    if model != "auto" and not model.startswith("object:"):
        model = str(spelled(read_model(model)))
    aggregation = str(spelled(read(config.aggregation, AGGREGATIONS, "aggregation")))
    clip, attack = config.clip_update, config.attack
    return dataclasses.replace(
        config,
        partition=partition,
        model=model,
        aggregation=aggregation,
        up=config.up and str(spelled(read(config.up, KINDS, "up"))),
        down=config.down and str(spelled(read(config.down, KINDS, "down"))),
        error_feedback=feedback.canonical(config.error_feedback, spelled),
        clip_update=clip and str(spelled(read_clip(clip))),
        attack=attack and str(spelled(read(attack, ATTACKS, "attack"))),
    )


def _check_trust(config: Config, method: AnyMethod) -> None:
    """Refuse rules that make no sense for the method."""
    check(read(config.aggregation, AGGREGATIONS, "aggregation"), method, config.method)
    down, up = message_types(method)
    if config.clip_update is not None:
        read_clip(config.clip_update)
        if not has_updates(up, down):
            raise ConfigError(f"clip_update: replies of {config.method} are no updates.")


def split_data(config: Config, dataset: Dataset | None = None) -> tuple[Dataset, str, Partition]:
    """The data of a configuration, the full name of its partition, and the split itself."""
    if dataset is None:
        root = None if config.data_root is None else Path(config.data_root)
        try:
            dataset = load(config.dataset, root, fold(config.seed, "dataset"))
        except MemoryError as error:
            raise DataError(f"data set {config.dataset}: {error}. Choose a smaller one.") from error
    else:
        dataset.check()
    dataset = dataset.scaled(config.input_scale)
    how = read(_partition_name(config, dataset), PARTITIONS, "partition")
    clients = config.clients or (None if isinstance(how, Natural) else DEFAULT_CLIENTS)
    partition = split(dataset, how, clients, fold(config.seed, "partition"), config.validation)
    return dataset, str(spell(how)), partition


def _check_memory(build: Callable[[], nn.Module], name: str) -> None:
    """Refuse a model whose weights alone are more than the memory of this machine."""
    try:
        with torch.device("meta"):  # nothing is allocated
            needed = sum(p.numel() * p.element_size() for p in build().parameters())
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        needed = sys.maxsize
    there = sys.maxsize
    if hasattr(os, "sysconf"):
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed >= there:
        raise ModelError(
            f"model {name}: its weights take {needed / 1e9:.3g} GB, this machine has "
            f"{there / 1e9:.3g} GB of memory. Choose a smaller one."
        )


def _partition_name(config: Config, dataset: Dataset) -> str:
    if config.partition != "auto":
        return config.partition
    if dataset.owners is not None:
        return "natural"
    return "dirichlet(alpha=0.5)" if dataset.kind in {"classes", "binary"} else "iid"


def _model_choice(config: Config, dataset: Dataset) -> str:
    if config.model.startswith("object:"):
        raise ConfigError(f"model={config.model!r}: pass the model itself to fedsieve.run.")
    if config.model != "auto":
        return config.model
    if dataset.layout == "tokens":
        return "lstm"
    if dataset.layout == "rows":
        return "linear"
    side = dataset.input_shape[-1]
    return "conv_small" if side < 20 else "lenet5" if side < 32 else "lenet5_wide"
