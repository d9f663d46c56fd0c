import json
import shutil

import numpy as np
import pytest

from nnxlab import parity, reference
from nnxlab.model import config, inputs, nnx_model, port
from nnxlab.training import nnx_loss_and_gradients

FIXED_CONFIG = {theirs: value for theirs, value in parity._FIXED.items()}


@pytest.fixture(scope="module")
def compared():
    return parity.compare(parity.read(reference.SMALL_DUMP))


@pytest.fixture
def dump(tmp_path):
    """A copy of MaxText's dump that a test may damage: (path, arrays, save)."""
    path = tmp_path / "dump.npz"
    shutil.copy(reference.SMALL_DUMP.with_suffix(".json"), path.with_suffix(".json"))
    with np.load(reference.SMALL_DUMP) as file:
        arrays = dict(file)

    def save():
        np.savez(path, **arrays)
        return path

    return path, arrays, save


def test_both_implementations_reproduce_maxtext(compared):
    assert len(compared) == 55  # logits, loss, mtp_loss and 52 gradient norms
    assert compared[["nnx", "linen"]].max(axis=None) <= parity.TOLERANCE


def test_every_gradient_norm_of_the_dump_is_compared(compared):
    with np.load(reference.SMALL_DUMP) as file:
        norms = {name for name in file.files if name.startswith("gradnorm/")}
    assert norms <= set(compared["quantity"])


def _store(path, sizes, batch):
    """Writes a dump of our own numbers in MaxText's form."""
    model = nnx_model.create(sizes)
    result = nnx_loss_and_gradients(model, batch)
    arrays = {f"param/{p}": np.asarray(v) for p, v in _weights(model).items()}
    arrays |= {f"data/{parity._INPUTS[k]}": np.asarray(v) for k, v in batch._asdict().items()}
    arrays |= {f"gradnorm/{p}": np.linalg.norm(g) for p, g in result.gradients.items()}
    arrays |= {"logits": result.logits, "loss": result.loss, "mtp_loss": result.mtp_loss}
    np.savez(path, **arrays)
    names = {f: parity._RENAMED.get(f, f) for f in sizes.__dataclass_fields__}
    stored = {theirs: getattr(sizes, ours) for ours, theirs in names.items()}
    path.with_suffix(".json").write_text(json.dumps({"config": stored | FIXED_CONFIG}))


def _weights(model):
    from nnxlab.sharding import variables

    return {path: variable.get_value() for path, variable in variables(model)}


def test_other_sizes_depths_and_factors_are_read(tmp_path):
    sizes = config.DEEPSEEK3_SMALL.replace(
        num_decoder_layers=3,
        first_num_dense_layers=1,
        mtp_num_layers=2,
        mtp_loss_scaling_factor=0.3,
        num_experts=4,
    )
    path = tmp_path / "two.npz"
    _store(path, sizes, inputs.synthetic(sizes, batch=2, length=8))
    read = parity.read(path)
    assert (read.config.mtp_num_layers, read.config.mtp_loss_scaling_factor) == (2, 0.3)
    result = parity.compare(read)
    assert result[["nnx", "linen"]].max(axis=None) <= 1e-6
    assert len(result) == 3 + len(port.shapes(nnx_model.abstract(sizes)))


def test_a_wrong_weight_shows_in_the_table(dump, compared):
    _, arrays, save = dump
    arrays["gradnorm/token_embedder.embedding"] *= 1.01
    read = parity.read(save())
    ours = compared.set_index("quantity").loc["gradnorm/token_embedder.embedding", "maxtext"]
    theirs = float(read.results["gradnorm/token_embedder.embedding"])
    assert abs(ours - theirs) / theirs > parity.TOLERANCE


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(parity.DumpError, match="none.npz: no such file"):
        parity.read(tmp_path / "none.npz")


def test_a_missing_config_is_named(dump):
    path, _, save = dump
    path.with_suffix(".json").unlink()
    with pytest.raises(parity.DumpError, match="dump.json: no such file"):
        parity.read(save())


@pytest.mark.parametrize("keep", [0, 10, 1000, 100_000, -30])
def test_a_truncated_npz_is_said_to_be_one(dump, keep):
    path, _, save = dump
    path.write_bytes(save().read_bytes()[:keep])
    with pytest.raises(parity.DumpError, match="truncated"):
        parity.read(path)


def test_all_faults_are_listed_at_once(dump):
    _, arrays, save = dump
    del arrays["param/decoder.decoder_norm.scale"], arrays["data/targets"]
    arrays["param/decoder.logits_dense.kernel"] = np.zeros((3, 4), np.float32)
    arrays["param/decoder.extra"] = np.zeros(2)
    arrays["logits"] = arrays["logits"] * np.nan
    with pytest.raises(parity.DumpError) as caught:
        parity.read(save())
    for fault in (
        "param/decoder.decoder_norm.scale: missing",
        "data/targets: missing",
        "param/decoder.logits_dense.kernel: shape (3, 4), config asks for (32, 256)",
        "param/decoder.extra: left over",
        "logits: not finite",
    ):
        assert fault in str(caught.value)


def test_tokens_outside_the_vocabulary_are_refused(dump):
    _, arrays, save = dump
    arrays["data/inputs"] = arrays["data/inputs"] + 256
    with pytest.raises(parity.DumpError, match="data/inputs: tokens outside a vocabulary of 256"):
        parity.read(save())


def test_a_config_that_the_specimen_cannot_be_is_refused(dump):
    path, _, save = dump
    stored = json.loads(path.with_suffix(".json").read_text())
    stored["config"] |= {"routed_score_func": "softmax", "logits_via_embedding": True}
    del stored["config"]["emb_dim"]
    path.with_suffix(".json").write_text(json.dumps(stored))
    with pytest.raises(parity.DumpError) as caught:
        parity.read(save())
    for word in ("routed_score_func", "logits_via_embedding", "emb_dim: missing"):
        assert word in str(caught.value)
