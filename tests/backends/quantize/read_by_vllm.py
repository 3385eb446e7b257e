"""Checkpoints in vLLM's hands: each says its greedy answer to a prompt. Runs in vLLM's own environment, `.bench/vllm`.

    python read_by_vllm.py ANSWERS IDS,OF,THE,PROMPT FOLDER …

The file ANSWERS is written: of each folder `{"ids": […], "logprobs": […]}`, in their order. Its build for AVX2 has no
product of four bits, so that this one alone is plain torch here; what the files and their numbers mean is vLLM's to
say.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

# Tokens: of the answer, of the context, and of what its attention reads at once.
ANSWER, LENGTH, PAGE = 16, 128, 32


def unpack(kernel: Any, layer: Any) -> None:
    """In place of its last step, which packs the weights anew for the product."""
    from vllm.model_executor.layers.quantization.utils import (  # type: ignore[import-not-found]
        quant_utils,
    )

    codes, scales, zeros = kernel._get_weight_params(layer)
    type = kernel.config.weight_type
    groups, columns = len(scales), 8 * len(codes)
    middle = type.bias
    if kernel.config.zero_points:
        middle = quant_utils.unpack_quantized_values_into_int32(zeros, type, 1)
        middle = middle.repeat_interleave(columns // groups, 0)
    codes = quant_utils.unpack_quantized_values_into_int32(codes, type, 0)
    layer.whole = (codes - middle) * scales.float().repeat_interleave(columns // groups, 0)


def multiply(kernel: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    product = (x.float() @ layer.whole).to(x.dtype)
    return product if bias is None else product + bias


def main() -> None:
    from vllm.model_executor.kernels.linear.mixed_precision.cpu import (  # type: ignore[import-not-found]
        CPUWNA16LinearKernel,
    )

    CPUWNA16LinearKernel._process_gptq_weights_w4a16 = unpack
    CPUWNA16LinearKernel.apply_weights = multiply
    answers, prompt, *folders = sys.argv[1:]
    ids = list(map(int, prompt.split(",")))
    Path(answers).write_text(json.dumps([answer(folder, ids) for folder in folders]))


def answer(folder: str, prompt: list[int]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    engine = LLM(
        model=folder, dtype="float16", max_model_len=LENGTH, max_num_seqs=1, block_size=PAGE,
        num_gpu_blocks_override=2 * LENGTH // PAGE, enforce_eager=True, skip_tokenizer_init=True,
    )  # fmt: skip
    sampling = SamplingParams(
        temperature=0.0, max_tokens=ANSWER, ignore_eos=True, detokenize=False, logprobs=0
    )
    [told] = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    [said] = told.outputs
    logprobs = [each[id].logprob for id, each in zip(said.token_ids, said.logprobs, strict=True)]
    return {"ids": list(said.token_ids), "logprobs": logprobs}


if __name__ == "__main__":
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    main()
