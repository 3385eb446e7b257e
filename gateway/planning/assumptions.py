"""What a plan takes for granted. All of it can be said otherwise, and all of it is printed beside the plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Where the defaults come from: `memory_efficiency` and `reduce_us` are what gpt-fast's published rates of Llama-2
    7B on one, two, four and eight A100 imply (github.com/pytorch-labs/gpt-fast, README: 104.9, 168.8, 254 and 328
    tokens/s); `compute_efficiency` is what large products reach of a data sheet's rate. The others are round numbers
    to replace.
    """

    context: int = 4096  # tokens that every sequence may grow to
    prompt_tokens: int = 512
    answer_tokens: int = 256
    cached: float = 0.0  # of a prompt, that is found in the prefix cache
    kv: str = "fp16"
    memory_share: float = (
        0.9  # of the GPU's memory, for weights, keys and values; the rest is for everything else
    )
    memory_efficiency: float = 0.7  # of the bandwidth
    compute_efficiency: float = 0.5  # of the dense rate
    reduce_us: float = 20.0  # that one all-reduce takes beside moving its bytes
    max_batch: int = 256  # sequences
    load: float = 0.7  # how busy replicas are at the peak
    users: int | None = None  # a day
    requests_per_user: float = 20.0  # a day
    peak: float = 3.0  # requests a second at the peak over those of the mean second of a day
    acceptance: float = 0.85  # of a drafted token
    draft_tokens: int = 5
