"""Stand-ins for what TorchTitan's wheel leaves out: a small tokenizer and a small `c4_test` data set.

TorchTitan reads both from `tests/assets`, relative to the working directory.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2000
DOCUMENTS = 600


def make_assets(folder: Path) -> None:
    """Writes tests/assets/{tokenizer,c4_test} below `folder`; the same bytes every time."""
    tokenizer_folder = folder / "tests" / "assets" / "tokenizer"
    data_folder = folder / "tests" / "assets" / "c4_test"
    tokenizer_folder.mkdir(parents=True, exist_ok=True)
    documents = make_documents()
    if not (data_folder / "data.json").exists():
        data_folder.mkdir(parents=True, exist_ok=True)
        write_data(data_folder / "data.json", documents)
    if not (tokenizer_folder / "tokenizer.json").exists():
        make_tokenizer(documents).save(str(tokenizer_folder / "tokenizer.json"))
        settings = {
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 131072,
        }
        (tokenizer_folder / "tokenizer_config.json").write_text(json.dumps(settings))


def make_documents() -> list[str]:
    """Texts of invented words whose frequencies fall as 1/rank."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(800)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(draw.choices(words, weights=weights, k=draw.randint(60, 400))) for _ in range(DOCUMENTS)]


def write_data(file: Path, documents: list[str]) -> None:
    """The documents in C4's form, one JSON object a line."""
    with file.open("w") as lines:
        for index, text in enumerate(documents):
            row = {"text": text, "timestamp": "2020-01-01T00:00:00Z", "url": f"http://x/{index}"}
            lines.write(json.dumps(row) + "\n")


def make_tokenizer(documents: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer with the two special tokens that TorchTitan asks for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents[:300], trainer)
    return tokenizer
