"""llama.cpp through llama-cpp-python's bindings, built for this machine. Runs in `.bench/llama`."""

from typing import Any

from benchmarks.peers.serving import LENGTH, MOST, Subject, Task, serve

STEP = 512  # tokens of a batch


class Llama:
    """Each answer is a sequence of one batch, as llama.cpp's own server runs them."""

    def __init__(self, task: Task) -> None:
        import llama_cpp  # type: ignore[import-not-found]

        self._api: Any = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            task.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {task.model}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = MOST * LENGTH, MOST
        parameters.n_batch = parameters.n_ubatch = STEP
        parameters.n_threads = parameters.n_threads_batch = task.threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._batch = llama_cpp.llama_batch_init(STEP, 0, 1)
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def generate(self, prompts: list[list[int]], answer: int) -> int:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        tokens = [self._read(prompt, sequence) for sequence, prompt in enumerate(prompts)]
        count = len(tokens)
        for turn in range(answer - 1):
            rows = [
                (token, len(prompt) + turn, sequence, True)
                for sequence, (token, prompt) in enumerate(zip(tokens, prompts, strict=True))
            ]
            self._run(rows)
            tokens = [self._sample(place) for place in range(len(rows))]
            count += len(tokens)
        return count

    def _read(self, prompt: list[int], sequence: int) -> int:
        rows = [(token, place, sequence, place + 1 == len(prompt)) for place, token in enumerate(prompt)]
        for start in range(0, len(rows), STEP):
            self._run(rows[start : start + STEP])
        return self._sample(-1)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of token, position, sequence, and whether its logits are wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for place, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wanted
        if self._api.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")

    def _sample(self, place: int) -> int:
        return int(self._api.llama_sampler_sample(self._sampler, self._context, place))


def load(task: Task) -> Subject:
    return Llama(task)


if __name__ == "__main__":
    serve(load)
