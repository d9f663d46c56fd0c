import jax.numpy as jnp
import numpy as np
import pytest

from nnxlab.runs import optimizer


def test_the_first_step_changes_nothing():
    rule = optimizer.adamw(20, peak=1.0)
    params = {"w": jnp.ones(3)}
    updates, _ = rule.update({"w": jnp.ones(3)}, rule.init(params), params)
    np.testing.assert_array_equal(updates["w"], 0)


def test_the_schedule_warms_up_linearly_and_ends_at_a_tenth():
    rate = optimizer.schedule(20, peak=1.0)
    assert [float(rate(step)) for step in (0, 1, 2)] == [0.0, 0.5, 1.0]
    falling = [float(rate(step)) for step in range(2, 20)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_have_a_schedule_too(steps):
    rate = optimizer.schedule(steps)
    assert all(np.isfinite(float(rate(step))) for step in range(steps + 2))


def test_large_gradients_are_clipped_by_their_global_norm():
    rule = optimizer.adamw(2, peak=1.0)
    params = {"w": jnp.zeros(2)}
    state = rule.init(params)
    for _ in range(2):
        small, large = (rule.update({"w": g}, state, params) for g in (jnp.array([0.6, 0.8]),) * 2)
    np.testing.assert_array_equal(small[0]["w"], large[0]["w"])
    huge, _ = rule.update({"w": jnp.array([60.0, 80.0])}, state, params)
    np.testing.assert_allclose(huge["w"], small[0]["w"], rtol=1e-5)
