"""Tokenizers: vocabularies from GGUF files and checkpoint folders, encoding, and a streaming decoder."""

from quire._tokenizer.detokenizer import Detokenizer
from quire.tokenizer.base import TextPair, Tokenizer
from quire.tokenizer.vocabulary import AddedTokenRule, Normalization, TokenKind, Vocabulary

__all__ = ["AddedTokenRule", "Detokenizer", "Normalization", "TextPair", "TokenKind", "Tokenizer", "Vocabulary"]
