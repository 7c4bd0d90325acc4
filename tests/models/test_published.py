"""Published language models."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from nosology.core import BundleError, ConfigError
from nosology.encoders.tokenizers import Vocabulary
from nosology.encoders.word_encoders import AwdLstm
from nosology.models.published import load_language_model

WORDS = ["xxpad", "heart", "pain", "lung"]


@pytest.fixture
def published(tmp_path):
    """A folder with weights as they are published, and the encoder they are of."""
    torch.manual_seed(1)
    source = AwdLstm(len(WORDS), size=5, hidden=7, layers=2)
    tensors = {f"0.{name}": value for name, value in source.state_dict().items()}
    tensors |= {"0.encoder_dp.emb.weight": source.encoder.weight.detach(), "1.decoder.bias": torch.zeros(len(WORDS))}
    torch.save(tensors, tmp_path / "lm.pth")
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    return source, tmp_path


def test_loads_known_words_and_all_layers(published):
    source, folder = published
    vocabulary = Vocabulary(["pain", "unheard", "heart"])
    model = AwdLstm(len(vocabulary), size=5, hidden=7, layers=2)
    assert load_language_model(model, vocabulary, folder / "lm.pth", folder / "words.txt") == 2
    torch.testing.assert_close(model.encoder.weight[2], source.encoder.weight[2])
    torch.testing.assert_close(model.encoder.weight[4], source.encoder.weight[1])
    torch.testing.assert_close(model.encoder.weight[3], source.encoder.weight.mean(0))
    torch.testing.assert_close(model.encoder.weight[1], source.encoder.weight.mean(0))
    (folder / "words.txt").write_text("xxunk\nheart\npain\nlung\n")
    load_language_model(model, vocabulary, folder / "lm.pth", folder / "words.txt")
    torch.testing.assert_close(model.encoder.weight[1], source.encoder.weight[0])
    for mine, its in zip(model.rnns.parameters(), source.rnns.parameters()):
        torch.testing.assert_close(mine, its)


def test_loads_a_file_with_model_and_optimizer(published):
    _, folder = published
    torch.save({"model": torch.load(folder / "lm.pth", weights_only=True)}, folder / "whole.pth")
    model = AwdLstm(3, size=5, hidden=7, layers=2)
    assert load_language_model(model, Vocabulary(["lung"]), folder / "whole.pth", folder / "words.txt") == 1


def test_other_sizes_are_refused(published):
    _, folder = published
    with pytest.raises(BundleError, match=r"encoder\.weight must be \(words, 6\); got \(4, 5\)"):
        load_language_model(AwdLstm(3, size=6, hidden=7), Vocabulary(["lung"]), folder / "lm.pth", folder / "words.txt")
    with pytest.raises(BundleError, match=r"rnns\.0\.weight_hh_l0_raw must be \(32, 8\); got \(28, 7\)"):
        model = AwdLstm(3, size=5, hidden=8, layers=2)
        load_language_model(model, Vocabulary(["lung"]), folder / "lm.pth", folder / "words.txt")
    for lines, answer in (("a\nb\nc\n", "a line for each of the 4 vectors; got 3"), ("a\nb\na\nc", "has 1 twice")):
        (folder / "other.txt").write_text(lines)
        with pytest.raises(ConfigError, match=answer):
            model = AwdLstm(3, size=5, hidden=7, layers=2)
            load_language_model(model, Vocabulary(["lung"]), folder / "lm.pth", folder / "other.txt")
    with pytest.raises(ConfigError, match="one word per line"):
        model = AwdLstm(3, size=5, hidden=7, layers=2)
        load_language_model(model, Vocabulary(["lung"]), folder / "lm.pth", folder / "none.txt")


def test_pickled_code_is_refused(published):
    _, folder = published

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(folder / "evil"),)

    (folder / "lm.pth").write_bytes(pickle.dumps({"0.encoder.weight": Evil()}))
    with pytest.raises(BundleError, match="holds more than tensors"):
        model = AwdLstm(3, size=5, hidden=7, layers=2)
        load_language_model(model, Vocabulary(["lung"]), folder / "lm.pth", folder / "words.txt")
    assert not (folder / "evil").exists()
