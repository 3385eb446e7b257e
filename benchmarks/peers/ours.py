"""Our engine, as its own loop drives it, with keys and values of two bytes, as llama.cpp keeps them."""

import torch

from backends.engine.engine import Engine
from backends.engine.runner import load_runner
from backends.wire import Band, EngineConfig, Sampling, Submit
from benchmarks.peers.serving import KV_TOKENS, MOST, Subject, Task, serve


class Ours:
    def __init__(self, task: Task) -> None:
        plain = task.format == "bf16"
        config = EngineConfig(
            name="bench", model=task.model, socket="", vocabulary="", cores=task.threads,
            kv_blocks=KV_TOKENS // 16, kv_cache="bf16", interactive_sequences=MOST,
            dtype="bfloat16" if plain else "auto",
            quantization="none" if plain else "auto" if task.format == "int4" else "int8",
            bands=(Band(rows=MOST, ttft_ms=1000),), step_budget_ms=60_000,  # all at once, nobody waits
        )  # fmt: skip
        torch.set_num_threads(task.threads)
        runner, _, size, context = load_runner(config)
        runner.set_threads(task.threads)
        self._engine = Engine(config, runner, [b"x"] * size, frozenset(), size, context)
        self._asked = 0

    def generate(self, prompts: list[list[int]], answer: int) -> int:
        sampling = Sampling(max_tokens=answer, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            self._asked += 1
            refused = self._engine.submit(b"", Submit(id=str(self._asked), prompt=prompt, sampling=sampling))
            if refused is not None:
                raise RuntimeError(refused.message)
        count = 0
        while self._engine.has_work:
            count += sum(len(output.ids) for _, output in self._engine.step())
        return count


def load(task: Task) -> Subject:
    return Ours(task)


if __name__ == "__main__":
    serve(load)
