"""`transformers` generate, as one batch, in the type that is fastest here."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from backends.instructions import auto_dtype
from benchmarks.peers.serving import Subject, Task, serve


class Transformers:
    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(task.model, dtype=auto_dtype("cpu"))
        self._model.generation_config.eos_token_id = None  # answers have the length that was asked for

    def generate(self, prompts: list[list[int]], answer: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=answer,
                do_sample=False,
                pad_token_id=0,
            )
        return int((out.shape[1] - ids.shape[1]) * len(out))


def load(task: Task) -> Subject:
    return Transformers(task)


if __name__ == "__main__":
    serve(load)
