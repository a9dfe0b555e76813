"""Prompts of a schedule: exact token counts, sharing as the trace says or none, the same in every process and any order."""

from workloads.prompts.dataset import dataset_lengths, dataset_rows, dataset_texts
from workloads.prompts.make import NotedPrompts, make_prompts
from workloads.prompts.text import corpus_words

__all__ = ["NotedPrompts", "corpus_words", "dataset_lengths", "dataset_rows", "dataset_texts", "make_prompts"]
