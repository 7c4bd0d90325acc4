"""Logistic regressions of the tagger predict as scikit-learn's."""

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from nosology.models.lexicon.logistic_regression import fit_logistic_regressions


def test_predictions_are_those_of_liblinear_for_frequent_and_rare_features():
    rng = np.random.default_rng(0)
    rates = np.geomspace(0.9, 0.002, 60)
    features = sparse.csr_matrix((rng.random((3000, 60)) < rates).astype(np.float32))
    features.resize(3000, 80)  # the last columns are empty
    truth = features[:, :60] @ rng.normal(0, 1.5, (60, 2)) - 1
    targets = (rng.random((3000, 2)) < expit(truth)).T
    weights, bias = fit_logistic_regressions(features, targets, 200)
    assert weights.shape == (2, 80)
    assert not weights[:, 60:].any()
    for number, target in enumerate(targets):
        exact = LogisticRegression(solver="liblinear", tol=1e-6, max_iter=1000).fit(features, target)
        predicted = expit(features @ weights[number] + bias[number])
        np.testing.assert_allclose(predicted, exact.predict_proba(features)[:, 1], atol=0.005)
    again = fit_logistic_regressions(features, targets, 200)
    np.testing.assert_array_equal(again[0], weights)


def test_ten_iterations_come_close():
    rng = np.random.default_rng(1)
    features = sparse.csr_matrix((rng.random((2000, 300)) < np.geomspace(0.9, 0.001, 300)).astype(np.float32))
    targets = rng.random((1, 2000)) < expit(features @ rng.normal(0, 1, 300) - 1)
    early, late = (
        expit(features @ weights[0] + bias[0])
        for weights, bias in (fit_logistic_regressions(features, targets, n) for n in (10, 300))
    )
    assert np.corrcoef(early, late)[0, 1] > 0.95
