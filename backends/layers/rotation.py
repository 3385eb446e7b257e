"""The settings of a rotary position embedding (arXiv:2104.09864) and of its scalings; `rope` computes with them.

Nothing here needs torch, so that a config.json can be read where there is none.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the context: long waves are slowed by `factor`, short ones kept, between them a blend.

    Source: `apply_scaling` of github.com/meta-llama/llama-models.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens that the model was first trained for

    @property
    def magnitude(self) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All positions divided by `factor`."""

    factor: float

    @property
    def magnitude(self) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071, section 3.2): waves that turn less than `beta_slow` times in the original context are
    slowed by `factor`, those that turn more than `beta_fast` times are kept, between them a ramp over dimensions.

    `truncate`: the ends of the ramp are whole dimensions, as in the paper's code; otherwise exact.
    """

    factor: float
    original_context: int
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE (arXiv:2402.13753): a divisor for each frequency, `short` ones for sequences of at most
    `original_context` tokens and `long` ones for the others.

    All keys of a sequence have to be rotated by the same divisors, so one that outgrows the original context is
    computed anew. Then each token is drawn from what the model says to the whole text before it, however that came
    about; `transformers` generates so too.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    magnitude: float
    stretched: bool = False


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongScaling
"""Slower waves for longer contexts. `magnitude` multiplies cos and sin, and so scores by its square."""


@dataclass(frozen=True, slots=True)
class Rope:
    """`theta`: the base of the geometric series of frequencies. `scaling`: None for plain ones. `part`: how much of
    a head is rotated, the first dimensions."""

    theta: float
    scaling: Scaling | None = None
    part: float = 1.0

    @property
    def border(self) -> int | None:
        """Longer sequences than this are rotated as `stretched` says; None: all alike."""
        return self.scaling.original_context if isinstance(self.scaling, LongScaling) else None

    @property
    def stretched(self) -> "Rope":
        """The rope for sequences beyond the border."""
        if not isinstance(self.scaling, LongScaling):
            return self
        return replace(self, scaling=replace(self.scaling, stretched=True))

    def rotated(self, head_dim: int) -> int:
        """How many dimensions of a head are rotated."""
        return int(head_dim * self.part)
