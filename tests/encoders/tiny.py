"""Transformers small enough for a test, as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import torch

_TEXT = "chronic low back pain heart failure pneumonia of the right lobe type 1 2 diabetes , . ; - ( )"
WORDS = _TEXT.split()
PIECES = [*"abcdefghijklmnopqrstuvwxyz0123456789", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789")]
_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def tiny_bert(folder: Path) -> Path:
    """A folder with a random BERT of 62 positions and a WordPiece tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*specials, *WORDS, *PIECES]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=62, pad_token_id=0, **_SIZES)
    BertModel(config).save_pretrained(folder)
    return folder


def tiny_roberta(folder: Path) -> Path:
    """A folder with a random RoBERTa of 62 positions (64 with the unused ones) and a byte-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, sep_token="</s>", **names).save_pretrained(folder)
    torch.manual_seed(0)
    size = tokenizer.get_vocab_size()
    config = RobertaConfig(vocab_size=size, max_position_embeddings=64, pad_token_id=1, **_SIZES)
    RobertaModel(config).save_pretrained(folder)
    return folder


def tiny_hmhan_settings(folder: Path) -> list[str]:
    """Settings of HMHAN with a tiny encoder, which is written to the folder."""
    return [
        f"model.encoder='{tiny_bert(folder)}'",
        "model.heads=2",
        "model.hidden=[16, 8]",
        "model.ensemble_size=1",
        "training.epochs=3",
        "training.learning_rate=5e-3",
    ]


def tiny_reports_settings(folder: Path) -> list[str]:
    """Settings of the coder of short reports with a tiny encoder, which is written to the folder."""
    return [*tiny_hmhan_settings(folder), "words.features=500", "words.c=[3.0]"]
