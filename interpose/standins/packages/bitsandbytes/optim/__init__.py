"""Stand-in of bitsandbytes.optim."""

from interpose.standins.blockwise_optimizers import (
    LAMB,
    LARS,
    SGD,
    Adagrad,
    Adagrad8bit,
    Adagrad32bit,
    Adam,
    Adam8bit,
    Adam32bit,
    AdamW,
    AdamW8bit,
    AdamW32bit,
    AdEMAMix,
    AdEMAMix8bit,
    AdEMAMix32bit,
    GlobalOptimManager,
    Lion,
    Lion8bit,
    Lion32bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdam32bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedAdamW32bit,
    PagedAdEMAMix,
    PagedAdEMAMix8bit,
    PagedLion,
    PagedLion8bit,
    PagedLion32bit,
    RMSprop,
    RMSprop8bit,
    RMSprop32bit,
    SGD8bit,
    SGD32bit,
)
from interpose.standins.surface import missing_names

__all__ = [
    "LAMB", "LARS", "SGD", "AdEMAMix", "AdEMAMix8bit", "AdEMAMix32bit", "Adagrad", "Adagrad8bit",
    "Adagrad32bit", "Adam", "Adam8bit", "Adam32bit", "AdamW", "AdamW8bit", "AdamW32bit",
    "GlobalOptimManager", "Lion", "Lion8bit", "Lion32bit", "PagedAdEMAMix", "PagedAdEMAMix8bit", "PagedAdam",
    "PagedAdam8bit", "PagedAdam32bit", "PagedAdamW", "PagedAdamW8bit", "PagedAdamW32bit", "PagedLion",
    "PagedLion8bit", "PagedLion32bit", "RMSprop", "RMSprop8bit", "RMSprop32bit", "SGD8bit", "SGD32bit",
]  # fmt: skip
__getattr__ = missing_names(__name__)
