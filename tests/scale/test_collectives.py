import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab.scale import collectives

TPU = """
ENTRY %main {
  %all-gather.281 = bf16[1,64,80]{2,1,0:T(8,128)(2,1)S(1)} all-gather(%fusion.82), channel_id=271
  %all-gather.9 = f32[8,4]{1,0} all-gather(%p), dimensions={0}
  %start = (f32[2]{0}, f32[16]{0}, u32[], u32[]) all-gather-start(f32[2]{0} %x), dimensions={0}
  %done = f32[16]{0} all-gather-done((f32[2]{0}, f32[16]{0}) %start)
  %sum = (f32[4]{0}, s8[2,2]{1,0}) all-reduce(%a, %b), to_apply=%add
  %move = pred[7]{0} collective-permute(%c), metadata={op_name="all-to-all(x)"}
  %f = f32[3]{0} fusion(%all-gather.9), calls=%all-reduce.clone
}
"""


def test_each_is_counted_once_with_the_bytes_of_its_result():
    assert collectives.by_kind(TPU) == {
        "all-gather": {"count": 3, "bytes": 2 * 64 * 80 + 4 * 32 + 4 * 16},
        "all-reduce": {"count": 1, "bytes": 4 * 4 + 4},
        "collective-permute": {"count": 1, "bytes": 7},
    }


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("bf16", 2), ("f8e4m3fn", 1), ("s8", 1)])
def test_every_dtype_has_its_width(dtype, width):
    text = f"%x = {dtype}[5,3]{{1,0}} all-gather(%y)"
    assert collectives.by_kind(text)["all-gather"]["bytes"] == 15 * width


def test_a_real_program_has_what_its_shardings_ask_for(mesh):
    split, whole = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("fsdp", None))
    gather = jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=whole)
    text = gather.lower(jnp.zeros((16, 4))).compile().as_text()
    assert collectives.by_kind(text) == {"all-gather": {"count": 1, "bytes": 16 * 4 * 4}}
    local = jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=split)
    assert collectives.by_kind(local.lower(jnp.zeros((16, 4))).compile().as_text()) == {}
