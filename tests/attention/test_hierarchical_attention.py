import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.attention.hierarchical_attention import ATTENTIONS, HierarchicalAttention, MultiHeadAttention

CATEGORIES = torch.tensor([0, 0, 1, 2])  # the last two codes are alone in theirs
WIDTH = 8


def build(name: str, seed: int = 0, heads: int = 4):
    torch.manual_seed(seed)
    module = ATTENTIONS[name](WIDTH, CATEGORIES, heads)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return module


def notes(lengths: list[int], width: int, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    states = torch.randn(len(lengths), width, WIDTH, generator=rng)
    return states, torch.arange(width) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize(("name", "heads"), [*((name, 4) for name in ATTENTIONS), ("hierarchical", 1)])
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), pads=st.integers(1, 7), seed=st.integers(0, 99))
def test_padding_changes_nothing_and_weights_sum_to_one(name, heads, lengths, pads, seed):
    module = build(name, seed, heads)
    states, mask = notes(lengths, 9, seed)
    wide = torch.cat([states, 100 * torch.ones(len(lengths), pads, WIDTH)], 1)
    wide_mask = torch.cat([mask, torch.zeros(len(lengths), pads, dtype=torch.bool)], 1)
    with torch.no_grad():
        assert module(wide, wide_mask).numpy() == pytest.approx(module(states, mask).numpy(), abs=1e-5)
        weights = module.attention(wide, wide_mask)
    assert weights.shape == (len(lengths), len(CATEGORIES), 9 + pads)
    assert weights.sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert weights[~wide_mask[:, None].expand_as(weights)].abs().max() == 0


@pytest.mark.parametrize("name", ATTENTIONS)
def test_half_precision(name):
    """The hierarchical attention projects few queries to the width of the states."""
    module, (states, mask) = build(name, heads=1), notes([9, 5], 9)
    with torch.no_grad():
        exact = module(states, mask)
        found = module.bfloat16()(states.bfloat16(), mask)
    assert found.dtype is torch.bfloat16 and (found - exact).abs().max() < 0.1 * exact.abs().max()


def test_category_vector_changes_only_codes_of_the_category():
    module = build("hierarchical")
    states, mask = notes([9, 5], 9)
    with torch.no_grad():
        before, attention_before = module(states, mask), module.attention(states, mask)
        module.category_queries[0] += torch.randn(WIDTH)
        after, attention_after = module(states, mask), module.attention(states, mask)
    changed = (after - before).abs().amax((0, 2)) > 1e-4
    assert changed.tolist() == [True, True, False, False]
    assert ((attention_after - attention_before).abs().amax((0, 2)) > 1e-5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("heads", [1, 2, 4])  # with 1 and 2 the queries are projected to the width of the states
@pytest.mark.parametrize("shared", [False, True])
def test_multi_head_attention_equals_torch(heads, shared):
    """Also in its gradients, and although torch's keys have a bias."""
    torch.manual_seed(3)
    ours, theirs = MultiHeadAttention(WIDTH, heads), torch.nn.MultiheadAttention(WIDTH, heads, batch_first=True)
    with torch.no_grad():
        for weight in (*ours.double().parameters(), *theirs.double().parameters()):
            weight.normal_()
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias[:WIDTH].copy_(ours.query.bias)
        theirs.in_proj_bias[2 * WIDTH :].copy_(ours.value.bias)
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    states, mask = notes([7, 4], 7)
    states = states.double().requires_grad_()
    queries = torch.randn(1 if shared else 2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    expected, weights = theirs(queries.expand(2, -1, -1), states, states, key_padding_mask=~mask)
    output = ours(queries, states, mask)
    assert output.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-9)
    assert ours.weights(queries, states, mask).detach().numpy() == pytest.approx(weights.detach().numpy(), abs=1e-9)
    of_torch, of_ours = (torch.autograd.grad(x.square().sum(), (queries, states)) for x in (expected, output))
    for one, other in zip(of_ours, of_torch):
        assert one.numpy() == pytest.approx(other.numpy(), abs=1e-9)


def test_report_without_tokens_is_finite():
    states, mask = notes([0, 3], 4)
    for name in ATTENTIONS:
        for heads in (1, 4):
            with torch.no_grad():
                assert build(name, heads=heads)(states, mask).isfinite().all()


def test_initialize_queries_copies_the_vectors():
    module = HierarchicalAttention(WIDTH, CATEGORIES, 2)
    codes, categories = torch.randn(4, WIDTH), torch.randn(3, WIDTH)
    module.initialize_queries(codes, categories)
    assert torch.equal(module.codes, codes) and torch.equal(module.category_queries, categories)


def test_untrained_query_attends_to_the_most_similar_token():
    torch.manual_seed(0)
    module = MultiHeadAttention(32, 4)
    states = torch.randn(1, 6, 32)
    with torch.no_grad():
        weights = module.weights(states[:, 2:3] * 3, states, torch.ones(1, 6, dtype=torch.bool))
    assert int(weights.argmax()) == 2


def test_mean_pooling_returns_the_mean_of_the_tokens():
    module = ATTENTIONS["none"](WIDTH, CATEGORIES)
    states, mask = notes([3], 5)
    expected = torch.nn.functional.layer_norm(states[:, :3].mean(1), (WIDTH,))
    assert module(states, mask)[:, 0].detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert np.allclose(module.attention(states, mask)[0, 0, :3], 1 / 3)
