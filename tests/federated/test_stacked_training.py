"""Sites trained in one program learn what they learn one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.stacked_training import StackedSites
from nosology.models.heads.coded_vectors import new_head
from nosology.models.heads.heads_settings import HeadShape
from nosology.models.heads.vector_loop import VectorNotes, train_epochs

DIM, LABELS = 6, 5
WIDTHS = {"mlp": [12], "deep": [12, 8, 8], "res": [12, 8, 8]}


def notes(n: int, seed: int, known: bool = False) -> VectorNotes:
    rng = np.random.default_rng(seed)
    vectors = torch.from_numpy(rng.normal(size=(n, DIM)).astype(np.float32))
    targets = torch.from_numpy((rng.random((n, LABELS)) < 0.3).astype(np.uint8))
    mask = torch.from_numpy((rng.random(LABELS) < 0.7).astype(np.float32)) if known else None
    return VectorNotes(vectors, targets, mask)


@pytest.mark.parametrize("head", ["mlp", "deep", "res"])
@pytest.mark.parametrize(
    ("sizes", "known", "clip", "mu"),
    [([40, 40, 40], False, 0.0, 0.0), ([33, 40, 47, 40], True, 0.5, 0.1)],
    ids=["alike", "unlike"],
)
def test_stacked_equals_one_by_one(head, sizes, known, clip, mu):
    settings = FederatedHeadsRecipe().training.model_copy(update={"batch": 16, "epochs": 6, "clip": clip})
    shape = HeadShape(head=head, widths=WIDTHS[head])
    sites = [notes(n, i, known) for i, n in enumerate(sizes)]
    first = new_head(shape, DIM, LABELS, 3)
    alone, losses = [], []
    for site in sites:
        net = new_head(shape, DIM, LABELS, 3)
        start = {name: value.detach().clone() for name, value in net.named_parameters()}
        pull = lambda n, s=start: mu / 2 * sum(((p - s[k]) ** 2).sum() for k, p in n.named_parameters())  # noqa: E731
        losses.append(train_epochs(net, site, settings, range(2, 5), seed=7, penalty=pull if mu else None))
        alone.append(net.state_dict())
    stack = {name: torch.stack([value] * len(sites)).clone() for name, value in first.state_dict().items()}
    found = StackedSites(sites, settings, 7).train(first, stack, range(2, 5), mu)
    for i, state in enumerate(alone):
        for name, value in state.items():
            torch.testing.assert_close(stack[name][i], value, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found, losses, atol=1e-6)


def test_sites_of_unlike_steps_are_refused():
    settings = FederatedHeadsRecipe().training.model_copy(update={"batch": 16})
    with pytest.raises(ValueError, match="equally many steps"):
        StackedSites([notes(16, 0), notes(40, 1)], settings, 0)
