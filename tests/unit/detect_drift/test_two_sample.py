import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from perennial.detect_drift.two_sample import cumulative_shares, profiles_of

OLD, NEW = slice(0, 1), slice(1, 2)


def effects_of(block, before, now, **labels):
    blocks = [block(0, {"x": before}), block(1, {"x": now})]
    profiles = profiles_of(blocks)
    return {profile.statistic: profile.effects_against(NEW, OLD)[0] for profile in profiles}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (lambda r: r.normal(size=2000), lambda r: r.normal(0.4, size=2000)),
        (lambda r: r.normal(size=2000), lambda r: r.normal(scale=2.0, size=2000)),
        (lambda r: r.poisson(3, size=2000), lambda r: r.poisson(4, size=2000)),
        (lambda r: r.integers(0, 2, size=2000), lambda r: r.random(2000) < 0.8),
        (
            lambda r: np.round(r.normal(size=2000), 1),
            lambda r: np.round(r.normal(0.3, size=900), 1),
        ),
        (lambda r: r.exponential(size=50), lambda r: r.exponential(size=7000)),
    ],
    ids=["mean", "scale", "counts", "binary", "ties", "sizes"],
)
def test_distance_from_sketches_is_the_distance_of_the_samples(block, before, now):
    random = np.random.default_rng(0)
    a, b = (np.asarray(make(random), dtype=float) for make in (before, now))
    expected = stats.ks_2samp(a, b).statistic
    # A quantile grid of 101 points places each function within 1/100.
    assert effects_of(block, a, b)["kolmogorov_smirnov"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([5.0] * 9, [5.0] * 4, 0.0),
        ([5.0] * 9, [6.0] * 4, 1.0),
        ([5.0], [5.0], 0.0),
        ([0.0] * 50 + [1.0] * 50, [0.0] * 25 + [1.0] * 75, 0.25),
        ([np.nan] * 5, [1.0] * 5, np.nan),
        ([1.0] * 5, [np.nan] * 5, np.nan),
    ],
    ids=["same constant", "other constant", "one row", "atoms", "no reference", "no window"],
)
def test_constant_discrete_and_empty_columns(block, before, now, expected):
    found = effects_of(block, before, now)["kolmogorov_smirnov"]
    assert found == pytest.approx(expected, abs=0.011, nan_ok=True)


def test_a_column_that_becomes_null_shows_in_the_null_share(block):
    assert effects_of(block, [1.0, 2.0], [np.nan, np.nan])["null_share"] == 1.0
    assert effects_of(block, ["a", None], ["a", "b"])["null_share"] == 0.5


def test_categories_are_compared_by_shares_not_counts(block):
    same = effects_of(block, ["a"] * 30 + ["b"] * 10, ["a"] * 3 + ["b"])
    assert same["total_variation"] == 0.0
    new = effects_of(block, ["a"] * 30 + ["b"] * 10, ["a"] * 3 + ["c"])
    assert new["total_variation"] == pytest.approx(0.25)


def test_distribution_jumps_at_an_atom_and_is_linear_between():
    quantiles = [0.0, 1.0, 1.0, 1.0, 2.0]
    grid = np.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
    before = cumulative_shares(quantiles, grid, "left")
    after = cumulative_shares(quantiles, grid, "right")
    assert before.tolist() == [0.0, 0.0, 0.125, 0.25, 0.875, 1.0, 1.0]
    assert after.tolist() == [0.0, 0.0, 0.125, 0.75, 0.875, 1.0, 1.0]


def test_several_blocks_together_are_their_pooled_rows(block):
    random = np.random.default_rng(1)
    parts = [random.normal(mean, size=rows) for mean, rows in ((0, 3000), (1, 500), (3, 1500))]
    blocks = [block(index, {"x": part}) for index, part in enumerate(parts)]
    numbers = profiles_of(blocks)[0]
    rest = numbers.effects_against_rest(slice(0, 3))
    for index, part in enumerate(parts):
        others = np.concatenate([other for i, other in enumerate(parts) if i != index])
        assert rest[index] == pytest.approx(stats.ks_2samp(part, others).statistic, abs=0.015)


def test_an_empty_block_has_no_effect_and_no_weight_in_the_rest(block):
    parts = [[0.0, 1.0, 2.0], [np.nan] * 3, [0.0, 1.0, 2.0]]
    numbers = profiles_of([block(index, {"x": part}) for index, part in enumerate(parts)])[0]
    rest = numbers.effects_against_rest(slice(0, 3))
    assert np.isnan(rest[1])
    assert rest[[0, 2]].max() < 1e-12


@pytest.mark.parametrize(
    ("means", "expected"), [((0.2, 0.5), 0.3), ((100.0, 300.0), 1.0), ((4.0, 4.0), 0.0)]
)
def test_the_label_moves_on_its_own_scale_or_on_the_range_of_all_blocks(block, means, expected):
    blocks = [block(i, {"x": [1.0]}, label_mean=mean) for i, mean in enumerate(means)]
    label = profiles_of(blocks)[-1]
    assert label.statistic == "label_mean"
    assert label.effects_against(NEW, OLD)[0] == pytest.approx(expected)


def test_p_values_are_those_of_the_textbook_tests(block):
    random = np.random.default_rng(2)
    a, b = random.normal(size=3000), random.normal(0.05, size=2000)
    texts = [list(random.choice(list("abc"), size=n, p=p)) for n, p in
             ((900, [0.5, 0.3, 0.2]), (400, [0.45, 0.33, 0.22]))]  # fmt: skip
    numbers = profiles_of([block(0, {"x": a}), block(1, {"x": b})])[0]
    expected = stats.ks_2samp(a, b, method="asymp").pvalue
    assert numbers.iid_p_value(1, OLD) == pytest.approx(expected, abs=0.1)
    shares = profiles_of([block(i, {"x": [str(v) for v in t]}) for i, t in enumerate(texts)])[0]
    table = [[t.count(letter) for letter in "abc"] for t in texts]
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert shares.iid_p_value(1, OLD) == pytest.approx(expected)


def test_p_value_of_what_cannot_differ_is_one(block):
    for profile in profiles_of([block(0, {"x": ["a"] * 3}), block(1, {"x": ["a"] * 3})]):
        assert profile.iid_p_value(1, OLD) == 1.0
    empty = profiles_of([block(0, {"x": [np.nan]}), block(1, {"x": [1.0]})])[0]
    assert empty.iid_p_value(1, OLD) == 1.0


@settings(max_examples=60)
@example([0.0, 2.3e-308], [1.0])
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
)
def test_effects_lie_in_the_unit_interval_and_do_not_depend_on_the_order(block, before, now):
    there = effects_of(block, before, now)["kolmogorov_smirnov"]
    back = effects_of(block, now, before)["kolmogorov_smirnov"]
    assert 0.0 <= there <= 1.0
    assert there == pytest.approx(back)
