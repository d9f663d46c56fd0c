import importlib.util

import pytest

from nnxlab import reference
from nnxlab.scale import program
from nnxlab.scale.program import MATRIX, TOPOLOGIES, Program

STORED = reference.tpu_compile()
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU's compiler: make tpu, or pip install 'nnxlab[tpu-compile]'",
)


def test_the_stored_table_is_that_of_the_matrix_and_says_what_it_was_made_on():
    assert "libtpu " in STORED["made_on"] and "jax " in STORED["made_on"]
    assert [(r["topology"], r["config"], r["cell"], r["program"]) for r in STORED["reports"]] == [
        (p.topology, p.config, p.cell, "forward" if p.forward else "train step") for p in MATRIX
    ]


def test_the_matrix_has_every_slice_plain_and_quantized_and_the_full_model():
    tiny = {(p.topology, p.cell) for p in MATRIX if p.config == "deepseek3-tiny"}
    assert tiny == {(t, cell) for t in TOPOLOGIES for cell in ("nnx_mtp", "nnx_mtp_qwix")}
    assert {p.forward for p in MATRIX if p.config == "deepseek3-671b"} == {True, False}


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("number", [2], ids=lambda n: f"{MATRIX[n].topology}-{MATRIX[n].cell}")
def test_the_tpu_compiler_makes_the_stored_table_again(number):
    assert (MATRIX[number].topology, MATRIX[number].cell) == ("v6e:2x4", "nnx_mtp")
    made, stored = program.report(MATRIX[number]), STORED["reports"][number]
    for state in ("fixed", "broken"):
        ours, theirs = made[state], stored[state]
        assert ours["parameter_bytes_per_chip"] == theirs["parameter_bytes_per_chip"]
        assert ours["argument_bytes"] == pytest.approx(theirs["argument_bytes"], rel=0.02)
        # Temporaries and code are the compiler's own affair, and differ a little by version.
        assert ours["peak_bytes"] == pytest.approx(theirs["peak_bytes"], rel=0.05)
        assert 0 < ours["hbm_share"] < 0.01
        if program.made_on() == STORED["made_on"]:
            assert ours["collectives"] == theirs["collectives"]
            assert ours["flops"] == theirs["flops"]


def test_unknown_words_are_refused_before_anything_is_compiled():
    with pytest.raises(ValueError, match="unknown config 'none'"):
        program.report(Program(topology="cpu:8", config="none"))
    with pytest.raises(ValueError, match="unknown chip 'v9'; known: v4"):
        program.report(Program(topology="v9:2x2", config="small"))
    with pytest.raises(ValueError, match="mesh fsdp=4 has 4 chips, cpu:8 has 8"):
        program.report(Program(topology="cpu:8", config="small", mesh="fsdp=4"))
