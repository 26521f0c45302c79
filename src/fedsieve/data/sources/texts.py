"""Text sources: tiny Shakespeare by speaker, delicious bookmarks and a part of RCV1."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import fetch_rcv1

from fedsieve.core.errors import DataError
from fedsieve.core.options import in_range
from fedsieve.data.dataset import Dataset
from fedsieve.data.sources import readers
from fedsieve.data.sources.files import Paths
from fedsieve.data.sources.readers import Array

_PLAYS = "tinyshakespeare/input.txt.gz"
_DELICIOUS_WORDS = 500
_RCV1_FEATURES = 47236
_RCV1_FILES = tuple(
    f"RCV1/{part}_py3.pkl" for part in ("samples", "sample_topics", "sample_id", "topics_names")
)


@dataclass(frozen=True)
class TinyShakespeare:
    """The next character after each window of a speaker's lines; speakers are natural clients.

    The plays are the million characters of char-rnn, not all of them as in LEAF: scores on that
    data set are no measure for this one.

    Windows do not overlap. The first 80 % of a speaker's text are for training, the rest for
    testing; a speaker whose text is too short for one window of each is left out.
    """

    window: int = 80

    about: ClassVar[str] = "next character of a play's lines, 65 symbols, natural clients: speakers"
    examples: ClassVar[str] = "10018 + 2437"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = ((_PLAYS,),)
    origin: ClassVar[str] = "tinyshakespeare (the input.txt of char-rnn)"

    def __post_init__(self) -> None:
        in_range("tiny_shakespeare: window", self.window, 1)

    def load(self, files: Paths) -> Dataset:
        text = readers.read_bytes(files[_PLAYS]).decode("utf-8", "replace")
        alphabet = np.unique(_code_points(text))
        train, test = [], []
        for lines in speeches(text).values():
            symbols = np.searchsorted(alphabet, _code_points(lines))
            cut = len(symbols) * 4 // 5
            parts = _windows(symbols[:cut], self.window), _windows(symbols[cut:], self.window)
            if all(len(x) for x, _ in parts):
                train.append(parts[0])
                test.append(parts[1])
        if not train:
            raise DataError(
                f"tiny_shakespeare: no speaker in {files[_PLAYS]} has text for a training and a "
                f"test window of {self.window} characters. Lower window."
            )
        x, y, owners = _joined(train)
        x_test, y_test, owners_test = _joined(test)
        return Dataset(
            name="tiny_shakespeare",
            x=x,
            y=y,
            x_test=x_test,
            y_test=y_test,
            kind="classes",
            num_outputs=len(alphabet),
            layout="tokens",
            owners=owners,
            owners_test=owners_test,
        )


@dataclass(frozen=True)
class Delicious:
    about: ClassVar[str] = "bookmarks with tags, 500 binary words, 983 labels (multi-label)"
    examples: ClassVar[str] = "12920 + 3185"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("delicious/delicious-train.arff.gz", "delicious/delicious-test.arff.gz"),
    )
    origin: ClassVar[str] = "delicious (Tsoumakas, Katakis, Vlahavas 2008; Mulan collection)"
    labels: int = 983  # the most frequent ones in training data; others are left out

    def __post_init__(self) -> None:
        in_range("delicious: labels", self.labels, 1, 983)

    def load(self, files: Paths) -> Dataset:
        train, test = (
            torch.from_numpy(readers.sparse_arff(files[name])) for name in self.layouts[0]
        )
        often = train[:, _DELICIOUS_WORDS:].sum(0).argsort(descending=True, stable=True)
        kept = _DELICIOUS_WORDS + often[: self.labels].sort().values
        return Dataset(
            name="delicious",
            x=train[:, :_DELICIOUS_WORDS].contiguous(),
            y=train[:, kept],
            x_test=test[:, :_DELICIOUS_WORDS].contiguous(),
            y_test=test[:, kept],
            kind="labels",
            num_outputs=self.labels,
            layout="rows",
        )


@dataclass(frozen=True)
class Rcv1Small:
    """1500 rows of RCV1-v2 with the usual binary task (CCAT or not)."""

    about: ClassVar[str] = "news stories, a part of RCV1, 47236 tf-idf features, 2 classes"
    examples: ClassVar[str] = "1000 + 500"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("rcv1_small/train.svm.gz", "rcv1_small/test.svm.gz"),
    )
    origin: ClassVar[str] = "RCV1-v2 (Lewis, Yang, Rose, Li 2004), rows in svmlight form"

    def load(self, files: Paths) -> Dataset:
        train, test = (readers.svmlight(files[name], _RCV1_FEATURES) for name in self.layouts[0])
        return Dataset(
            name="rcv1_small",
            x=torch.from_numpy(train[0]),
            y=torch.from_numpy((train[1] > 0).astype(np.int64)),
            x_test=torch.from_numpy(test[0]),
            y_test=torch.from_numpy((test[1] > 0).astype(np.int64)),
            kind="classes",
            num_outputs=2,
            layout="rows",
        )


@dataclass(frozen=True)
class Rcv1:
    """RCV1-v2 with its most frequent topics as labels, from scikit-learn's own files.

    Rows are the first ones of the training and of the test part; they are held dense, 189 kB each.
    """

    rows: int = 10000
    test_rows: int = 5000
    labels: int = 34

    about: ClassVar[str] = "news stories, RCV1 from scikit-learn's files, 47236 features, topics"
    examples: ClassVar[str] = "up to 23149 + 781265"
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (_RCV1_FILES,)
    origin: ClassVar[str] = "scikit-learn's cache, made by fetch_rcv1(data_home=FOLDER)"

    def __post_init__(self) -> None:
        in_range("rcv1: rows", self.rows, 1, 23149)
        in_range("rcv1: test_rows", self.test_rows, 1, 781265)
        in_range("rcv1: labels", self.labels, 1, 103)

    def load(self, files: Paths) -> Dataset:
        home = files[_RCV1_FILES[0]].parent.parent
        parts = [
            fetch_rcv1(data_home=home, subset=subset, download_if_missing=False)
            for subset in ("train", "test")
        ]
        counts = np.asarray(parts[0].target.sum(0)).reshape(-1).astype(np.int64)
        topics = np.sort(np.argsort(-counts, kind="stable")[: self.labels])
        x, x_test, y, y_test = (
            torch.from_numpy(part[name][:rows].toarray()[:, columns].astype(np.float32))
            for name, columns in (("data", slice(None)), ("target", topics))
            for part, rows in zip(parts, (self.rows, self.test_rows), strict=True)
        )
        return Dataset(
            name="rcv1",
            x=x,
            y=y,
            x_test=x_test,
            y_test=y_test,
            kind="labels",
            num_outputs=self.labels,
            layout="rows",
        )


def speeches(text: str) -> dict[str, str]:
    """Each speaker's lines in order, from blocks `SPEAKER:` + lines set apart by blank lines."""
    spoken: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        head, _, lines = block.strip("\n").partition("\n")
        if head.endswith(":") and lines:
            spoken.setdefault(head[:-1], []).append(lines)
    return {speaker: "\n".join(lines) for speaker, lines in spoken.items()}


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _windows(symbols: Array, window: int) -> tuple[Array, Array]:
    count = max(0, len(symbols) - 1) // window
    return symbols[: count * window].reshape(count, window), symbols[window::window][:count]


def _joined(parts: list[tuple[Array, Array]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    owners = np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(owners)
