import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.attention.hierarchical_attention import ATTENTIONS, HierarchicalAttention, MultiHeadAttention

CATEGORIES = torch.tensor([0, 0, 1, 2])  # the last two codes are alone in theirs
WIDTH = 8


def made(name: str, seed: int = 0):
    torch.manual_seed(seed)
    look = ATTENTIONS[name](WIDTH, CATEGORIES, 4)
    with torch.no_grad():
        for weight in look.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return look


def notes(lengths: list[int], width: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    states = torch.randn(len(lengths), width, WIDTH, generator=rng)
    return states, torch.arange(width) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", ATTENTIONS)
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), pads=st.integers(1, 7), seed=st.integers(0, 99))
def test_pads_change_nothing_and_rows_sum_to_one(name, lengths, pads, seed):
    look = made(name, seed)
    states, mask = notes(lengths, 9, seed)
    wide = torch.cat([states, 100 * torch.ones(len(lengths), pads, WIDTH)], 1)
    wide_mask = torch.cat([mask, torch.zeros(len(lengths), pads, dtype=torch.bool)], 1)
    with torch.no_grad():
        assert look(wide, wide_mask).numpy() == pytest.approx(look(states, mask).numpy(), abs=1e-5)
        weights = look.attention(wide, wide_mask)
    assert weights.shape == (len(lengths), len(CATEGORIES), 9 + pads)
    assert weights.sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert weights[~wide_mask[:, None].expand_as(weights)].abs().max() == 0


def test_a_code_s_category_vector_reaches_its_query_and_no_other():
    look = made("hierarchical")
    states, mask = notes([9, 5], 9)
    with torch.no_grad():
        before, looked = look(states, mask), look.attention(states, mask)
        look.categories[0] += torch.randn(WIDTH)
        after, looks = look(states, mask), look.attention(states, mask)
    changed = (after - before).abs().amax((0, 2)) > 1e-4
    assert changed.tolist() == [True, True, False, False]
    assert ((looks - looked).abs().amax((0, 2)) > 1e-5).tolist() == [True, True, False, False]


def test_multi_head_is_torch_s_own():
    torch.manual_seed(3)
    ours, theirs = MultiHeadAttention(WIDTH, 4), torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    with torch.no_grad():
        for layer in (ours.query, ours.key, ours.value, ours.out):
            layer.weight.normal_()
            layer.bias.normal_()
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
        states, mask = notes([7, 4], 7)
        queries = torch.randn(2, 3, WIDTH)
        found, weights = theirs(queries, states, states, key_padding_mask=~mask)
        assert ours(queries, states, mask).numpy() == pytest.approx(found.numpy(), abs=1e-5)
        assert ours.weights(queries, states, mask).numpy() == pytest.approx(weights.numpy(), abs=1e-5)


def test_a_report_without_a_token_is_finite():
    states, mask = notes([0, 3], 4)
    for name in ATTENTIONS:
        with torch.no_grad():
            assert made(name)(states, mask).isfinite().all()


def test_queries_begin_as_descriptions():
    look = HierarchicalAttention(WIDTH, CATEGORIES, 2)
    codes, categories = torch.randn(4, WIDTH), torch.randn(3, WIDTH)
    look.initialize_queries(codes, categories)
    assert torch.equal(look.codes, codes) and torch.equal(look.categories, categories)


def test_a_fresh_query_looks_at_the_token_that_is_like_it():
    torch.manual_seed(0)
    look = MultiHeadAttention(32, 4)
    states = torch.randn(1, 6, 32)
    with torch.no_grad():
        weights = look.weights(states[:, 2:3] * 3, states, torch.ones(1, 6, dtype=torch.bool))
    assert int(weights.argmax()) == 2


def test_the_mean_is_the_mean_of_the_tokens():
    look = ATTENTIONS["none"](WIDTH, CATEGORIES)
    states, mask = notes([3], 5)
    expected = torch.nn.functional.layer_norm(states[:, :3].mean(1), (WIDTH,))
    assert look(states, mask)[:, 0].detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert np.allclose(look.attention(states, mask)[0, 0, :3], 1 / 3)
