"""The model card that lies beside an artefact, with the figures that were measured of it."""

from classifier import corpus
from classifier.artefact import Meta, Weights
from classifier.doubt import trust
from classifier.features import BUCKETS, STRUCTURE
from classifier.figures import pages

NAME = "MODEL_CARD.md"

_TEXT = """\
# Prompt classifier of Headrace

Made by `headrace train`; do not edit. It reads a prompt, before any model has run, and says
- for each tier ({tiers}) the probability that the tier's answer is good, and
- which task it is: {tasks}.

## What it is
A model over {structure} structure features, {buckets:,} buckets of hashed word 1- and 2-grams, taken from the first
and the last 2,000 characters, and the mean of its words' vectors, of a table of {words:,} English words. The table was
made from the input embeddings of Qwen2.5-Coder-1.5B-Instruct (Apache-2.0); no model runs. The heads are linear in these
and in {waves} random Fourier features of structure and meaning. Each tier has a calibrated logistic head; what sets
tiers apart is learnt more cautiously than what they share, and a dearer tier's estimate is never below a cheaper one's.
`{dearest}` minus `{cheapest}` is what a request may gain by the dearer tier, and it is this gain that routing should
weigh: a prompt that is hopeless for the largest tier too is hard, and gains nothing there.

It doubts what it has not seen: the more of a prompt's words were not met in fitting, the nearer its estimates are to
each tier's usual share of good answers ({usual}). With all words known it trusts what it has learnt to {most:.0%}, with
half of them to {half:.0%}, with none to {none:.0%}; this was fitted on kinds of prompts that were left out in turn.

## What it was fitted on
{origin} A fifth of the questions, chosen by a hash of their text, was kept out of all fitting and of all choices: the
penalties, the scales of the features and their number come from cross-validation on the other four fifths and on
public outcomes of other models. SHA-256 of the files:

{data}

## What was measured
APGR is the share of the quality gap between the cheap and the dear tier that ranking recovers, averaged over all
shares of requests sent up (0.5 is chance); CPT(50) and CPT(80) are the shares that recover 50 and 80% of it. "Kept" is
quality as a share of the dear tier's, with so many requests on the small one, or at so much of the cost. AUC is of the
requests that gain against those that do not. In brackets stand 95% intervals of a bootstrap over questions.

{figures}

## How far to trust it
{trust}- Where an interval includes 0.5 or lies below it, nothing is known about the order of requests, and on data of
  other origin that is the rule; ranking by mere length often does as well or better. Much of the pooled figure is
  knowing which kind of benchmark a prompt comes from: see the line of the source's name, and the figures within a
  source. A prompt tells little about which of two models will be right; labels from one's own traffic, and judging the
  answer itself, tell more.
- Mostly English. Chat is learnt from few examples; its figures say little.
- Texts are read at their two ends only: what stands in the middle of a long prompt is not seen.
"""

_PUBLIC = """\
Graded answers of Llama-2-chat 7B, 13B and 70B to GSM8K, MATH, MMLU, BBH, HumanEval+ and MT-Bench (FastEval,
Apache-2.0); for tasks, prompts of LLMRouter, HumanEval, self-instruct templates, Spec-Bench and MT-Bench (MIT and
Apache-2.0) and some two hundred everyday prompts written for this project."""

_OWN = """\
Graded answers of the tiers {tiers}, in the files below; the task model is the one that ships with Headrace, and so are
its figures."""

_OF_LLAMA = """\
- The probabilities are calibrated for Llama-2-chat on prompts like the benchmarks above, where a good answer means
  a correct one. With other models the order of tiers still holds, the numbers do not: fit again on own outcomes.
"""


def render(meta: Meta, weights: Weights) -> str:
    """The card as Markdown."""
    doubt = weights.doubt
    most, half, none = (float(trust(unknown, doubt.slopes)) for unknown in (0.0, 0.5, 1.0))
    public = corpus.TIER_OUTCOMES in meta.data
    tiers = ", ".join(meta.tiers)
    return _TEXT.format(
        tiers=tiers,
        tasks=", ".join(meta.tasks),
        structure=len(STRUCTURE),
        buckets=BUCKETS,
        words=len(doubt.known),
        waves=len(weights.phases),
        usual=", ".join(f"{name} {share:.2f}" for name, share in zip(meta.tiers, doubt.usual, strict=True)),
        most=most,
        half=half,
        none=none,
        dearest=meta.tiers[-1],
        cheapest=meta.tiers[0],
        origin=_PUBLIC if public else _OWN.format(tiers=tiers),
        data="\n".join(f"    {digest}  {name}" for name, digest in meta.data.items()),
        figures=pages(meta.figures),
        trust=_OF_LLAMA if public else "",
    )
