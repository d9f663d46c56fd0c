import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nnxlab.model import config
from nnxlab.runs import data

SMALL = config.DEEPSEEK3_SMALL
documents = st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=6)


@given(documents, st.integers(1, 7))
def test_packing_loses_no_token_and_mixes_no_documents(texts, length):
    stream = b"".join(texts)
    if len(stream) <= length:
        return
    batch = data.pack(texts, length)
    rows = (len(stream) - 1) // length
    assert batch.tokens.shape == (rows, length)
    assert bytes(batch.tokens.ravel().astype(np.uint8)) == stream[: rows * length]
    assert bytes(batch.targets.ravel().astype(np.uint8)) == stream[1 : rows * length + 1]
    owner = np.repeat(range(len(texts)), list(map(len, texts)))
    same = (owner[: rows * length] == owner[1 : rows * length + 1]).reshape(rows, length)
    np.testing.assert_array_equal(batch.target_mask != 0, same)


@given(documents, st.integers(1, 7))
def test_segments_count_from_1_and_positions_from_0_in_each_document(texts, length):
    if sum(map(len, texts)) <= length:
        return
    batch = data.pack(texts, length)
    for segments, positions in zip(batch.segment_ids, batch.positions, strict=True):
        assert segments[0] == 1 and set(np.diff(segments)) <= {0, 1}
        for _, run in itertools.groupby(zip(segments, positions, strict=True), lambda p: p[0]):
            found = [position for _, position in run]
            assert found == list(range(len(found)))


def test_real_text_comes_in_batches_of_the_asked_shape_and_follows_the_seed():
    one, same, other = (next(data.text(SMALL, 4, 32, seed)) for seed in (0, 0, 1))
    assert one.tokens.shape == (4, 32) and one.tokens.max() < 256
    assert (one.tokens == same.tokens).all() and (one.tokens != other.tokens).any()


def test_a_vocabulary_too_small_for_bytes_is_refused():
    with pytest.raises(ValueError, match="vocab_size=255 is too small for bytes: 256 needed"):
        next(data.text(SMALL.replace(vocab_size=255), 1, 8, 0))


def test_synthetic_is_one_batch_for_ever():
    batches = data.synthetic(SMALL, 2, 8, 0)
    assert next(batches) is next(batches)
