"""Prompts of a schedule: exact token counts, sharing as the trace says or none, the same in every process and any order."""

from workloads.prompts.make import make_prompts
from workloads.prompts.text import corpus_words

__all__ = ["corpus_words", "make_prompts"]
