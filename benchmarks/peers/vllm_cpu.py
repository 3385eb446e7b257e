"""vLLM for CPUs, compiled, in this process, as its documentation starts it. Runs in `.bench/vllm`."""

import os
from typing import Any

from backends.instructions import auto_dtype
from benchmarks.peers.serving import KV_TOKENS, LENGTH, MOST, Subject, Task, serve

PAGE = 32  # tokens, the least that its attention on CPUs takes


class Vllm:
    def __init__(self, task: Task) -> None:
        from vllm import LLM  # type: ignore[import-not-found]

        self._engine: Any = LLM(
            model=task.model,
            dtype=auto_dtype("cpu"),
            max_model_len=LENGTH,
            max_num_seqs=MOST,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            block_size=PAGE,
            num_gpu_blocks_override=KV_TOKENS // PAGE,
        )

    def generate(self, prompts: list[list[int]], answer: int) -> int:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return sum(
            len(each.outputs[0].token_ids) for each in self._engine.generate(asked, sampling, use_tqdm=False)
        )


def load(task: Task) -> Subject:
    cores = sorted(os.sched_getaffinity(0))[: task.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))  # left alone, it keeps a core back
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # so that the memory is that of this process
    return Vllm(task)


if __name__ == "__main__":
    serve(load)
