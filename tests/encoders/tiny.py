"""Transformers small enough for a test, written as folders in the way Hugging Face writes them."""

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
    """A folder with a random BERT of 62 places and a WordPiece tokenizer."""
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
    """A folder with a random RoBERTa of 62 places (64 with those it does not use) and a byte-level tokenizer."""
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
