"""llama.cpp through its own interface, without viva: one sequence, and every logit that is asked for."""

from __future__ import annotations

from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]


class PlainLlama:
    """A model that computes prompts in batches of up to ``batch`` tokens; all that it reads begins with its BOS.

    With quantised weights the numbers of a row may depend on how many rows are computed with it. ``multiple``: of this
    there are a multiple, and two at least; dummies fill up, behind a prompt or beside a token.
    """

    def __init__(
        self, path: Path, context: int, *, flash: bool = False, batch: int = 512, multiple: int = 1, threads: int = 1
    ) -> None:
        params = lib.llama_context_default_params()
        self._least, self._multiple = 2 * multiple if multiple > 1 else 1, multiple
        params.n_ctx, params.n_batch, params.n_ubatch = context * self._least, batch, batch
        params.n_seq_max, params.n_threads, params.n_threads_batch = self._least, threads, threads
        params.flash_attn_type = int(flash)
        self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        self._context = lib.llama_init_from_model(self._model, params)
        assert self._context, path
        self._memory = lib.llama_get_memory(self._context)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._batch, self._size = lib.llama_batch_init(batch, 0, 1), batch
        self.n_vocab = lib.llama_vocab_n_tokens(self._vocab)

    @property
    def template(self) -> str:
        """The chat template in the file; "" for a model without."""
        found = lib.llama_model_chat_template(self._model, None)
        return found.decode() if found else ""

    def tokens(self, *texts: str, begins: bool = False, special: bool = False) -> list[int]:
        """The tokens of texts, each by itself. ``begins``: behind BOS if the model has one; ``special``: control tokens
        are parsed.
        """
        tokens: list[int] = []
        for index, text in enumerate(texts):
            data = text.encode()
            buffer = (lib.llama_token * (len(data) + 8))()
            added = begins and index == 0
            count = lib.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), added, special)
            tokens += buffer[:count]
        return tokens

    def compute(self, tokens: list[int], at: int, rows: int, *, beside: bool = False) -> Rows:
        """Log-probabilities over the vocabulary behind each of the last ``rows`` tokens, which stand from ``at`` on.

        Whatever stood there before is forgotten. ``beside``: dummies are in sequences of their own.
        """
        found: list[Rows] = []
        for start in range(0, len(tokens), self._size):
            part = tokens[start : start + self._size]
            wanted = range(max(0, len(tokens) - rows - start), len(part))
            self._forget(0, at + start)
            self._decode(part, at + start, wanted, beside)
            pointers = (lib.llama_get_logits_ith(self._context, index) for index in wanted)
            found += [np.ctypeslib.as_array(one, shape=(self.n_vocab,)).astype(np.float64) for one in pointers]
        logits = np.array(found) - np.max(found, axis=1, keepdims=True)
        normalised: Rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return normalised

    def _decode(self, tokens: list[int], at: int, wanted: range, beside: bool) -> None:
        batch, size = self._batch, self._filled(len(tokens))
        for index, token in enumerate([*tokens, *[0] * (size - len(tokens))]):
            alone = beside and index >= len(tokens)
            batch.token[index], batch.pos[index] = token, 0 if alone else at + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, index if alone else 0
            batch.logits[index] = index in wanted
        spare = [index for index in range(size) if index not in wanted]
        for index in spare[len(spare) + len(wanted) - self._filled(len(wanted)) :]:
            batch.logits[index] = True
        batch.n_tokens = size
        assert lib.llama_decode(self._context, batch) == 0
        self._forget(0, at + len(tokens))
        for sequence in range(1, self._least):
            self._forget(sequence, 0)

    def _filled(self, rows: int) -> int:
        """The number of rows with dummies."""
        return -(-max(rows, self._least) // self._multiple) * self._multiple if rows else 0

    def _forget(self, sequence: int, start: int) -> None:
        assert lib.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def rows(self, context: list[int], continuations: list[list[int]]) -> list[Rows]:
        """For each continuation of a context that is not empty: a row over the vocabulary for each of its tokens."""
        first = self.compute(context, 0, 1)
        rows = []
        for tokens in continuations:
            more = [self.compute(tokens[:-1], len(context), len(tokens) - 1)] if len(tokens) > 1 else []
            rows.append(np.concatenate([first, *more]))
        return rows

    def logprobs(self, context: list[int], continuations: list[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each continuation."""
        return [
            [float(row[token]) for row, token in zip(rows, tokens, strict=True)]
            for rows, tokens in zip(self.rows(context, continuations), continuations, strict=True)
        ]

    def greedy(self, prompt: list[int], limit: int) -> list[int]:
        """The likeliest tokens, up to the end of a turn or the limit."""
        said: list[int] = []
        [row] = self.compute(prompt, 0, 1)
        while len(said) < limit and not lib.llama_vocab_is_eog(self._vocab, likeliest := int(row.argmax())):
            said.append(likeliest)
            [row] = self.compute(said[-1:], len(prompt) + len(said) - 1, 1, beside=True)
        return said

    def close(self) -> None:
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)
