"""Batches: one synthetic batch for ever, as in the PR, or real text, packed."""

import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from nnxlab.model import inputs
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch

BYTES = 256  # tokens of the text source


def synthetic(config: DeepSeekConfig, batch: int, length: int, seed: int) -> Iterator[Batch]:
    """The same random batch at every step, as MaxText's ``dataset_type=synthetic``: [B, S]."""
    one = Batch(*map(np.asarray, inputs.synthetic(config, batch, length, seed)))
    while True:
        yield one


def text(config: DeepSeekConfig, batch: int, length: int, seed: int) -> Iterator[Batch]:
    """Sources of this Python's standard library as bytes, packed, rows in random order: [B, S].

    Raises:
      ValueError: The vocabulary is too small for bytes.
      FileNotFoundError: This Python has no standard library sources.
    """
    if config.vocab_size < BYTES:
        raise ValueError(f"vocab_size={config.vocab_size} is too small for bytes: {BYTES} needed")
    rows = pack(_documents(), length)
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(rows.tokens))
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            yield Batch(*(field[chosen] for field in rows))


SOURCES: dict[str, Callable[[DeepSeekConfig, int, int, int], Iterator[Batch]]] = {
    "synthetic": synthetic,
    "text": text,
}


def pack(documents: Iterable[bytes], length: int) -> Batch:
    """Documents end to end in rows of ``length``: int32 [rows, S] each.

    Segment ids count from 1 in each row, positions from 0 in each document; the target mask is 0
    where the next token belongs to another document.
    """
    documents = [np.frombuffer(document, np.uint8) for document in documents if document]
    tokens = np.concatenate(documents).astype(np.int32)
    number = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    rows = (len(tokens) - 1) // length
    kept = slice(0, rows * length)
    row_start = np.repeat(np.arange(rows) * length, length)
    first = np.searchsorted(number, number[kept])  # where each token's document begins
    segments = number[kept] - number[row_start] + 1
    same = number[kept] == number[1 : rows * length + 1]
    fields = (
        tokens[kept],
        np.arange(rows * length) - np.maximum(first, row_start),
        segments,
        tokens[1 : rows * length + 1],
        np.where(same, segments, 0),
    )
    return Batch(*(field.reshape(rows, length).astype(np.int32) for field in fields))


def _documents() -> list[bytes]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    documents = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    if not documents:
        raise FileNotFoundError(f"no Python sources in {folder}: choose --data synthetic")
    return documents
