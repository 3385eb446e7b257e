"""What the shipped classifier says. None of these prompts was trained on."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import Assessment, everyday
from classifier.model import Classifier

SHIPPED = Classifier.load()

ARTICLE = "The council met on Monday to discuss the new bridge over the river. " * 20

GOLDEN = [
    ("code", "Write a Python function that reverses a linked list."),
    ("code", "Why does this throw? ```js\nfoo.map(x => x.y)\n```"),
    ("code", 'def add(a, b):\n    """Add two numbers."""\n'),
    ("code", "Implement quicksort in Rust"),
    ("code", "fix this sql: SELECT nmae FROM users"),
    ("code", "How do I center a div in CSS?"),
    ("math", "What is 17 * 23?"),
    ("math", "Solve 3x + 5 = 20"),
    ("math", "12+5"),
    ("math", "If I buy 3 apples for $2 each and pay with $10, how much change do I get?"),
    ("math", "What is the probability of rolling two sixes?"),
    ("translation", "Translate to French: The weather is nice."),
    ("translation", "translate the following text into German\n\nHe went home."),
    ("translation", "How do you say 'good night' in Spanish?"),
    ("translation", "Übersetze ins Englische: Guten Tag"),
    ("summarization", f"Summarize the following article:\n{ARTICLE}"),
    ("summarization", f"{ARTICLE}\n\nGive me a summary of this."),
    ("summarization", f"TL;DR: {ARTICLE}"),
    ("creative", "Write a poem about autumn"),
    ("creative", "Compose a funny limerick about cats"),
    ("creative", "Tell me a short story about a dragon who is afraid of fire."),
    ("qa", "What is the capital of Australia?"),
    ("qa", "Who wrote Hamlet?"),
    ("qa", "When did World War II end?"),
    ("qa", "Which planet is the largest?\n(A) Mars\n(B) Jupiter\n(C) Venus\n(D) Earth"),
    ("qa", "Is the following review positive or negative? The food was great."),
    ("chat", "hey there"),
    ("chat", "Hello! How are you doing today?"),
    ("chat", "thanks!"),
    ("chat", "I feel lonely lately."),
]


@pytest.mark.parametrize(("task", "prompt"), GOLDEN, ids=[prompt[:30] for _, prompt in GOLDEN])
def test_tasks(task: str, prompt: str) -> None:
    assert SHIPPED.assess(prompt).task == task


def test_golden_prompts_were_not_trained_on() -> None:
    assert {prompt for _, prompt in GOLDEN}.isdisjoint(prompt for _, prompt in everyday.prompts())


def check(assessment: Assessment) -> None:
    good = list(assessment.good.values())
    assert list(assessment.good) == ["7b", "13b", "70b"]
    assert all(0 < each < 1 for each in good)
    assert good == sorted(good)
    assert assessment.seconds > 0


@given(st.text(st.characters(), max_size=200))
def test_estimates_are_probabilities_and_never_fall_with_the_tier(text: str) -> None:
    check(SHIPPED.assess(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0" * 5000,
        "\ud800\udfff",
        "?" * 9999,
        "0" * 9999,
        "\\frac{" * 9999,
        "def " * 9999,
        "é" * 1_000_000,
    ],
    ids=["empty", "nul", "surrogates", "questions", "digits", "latex", "code", "a megabyte"],
)
def test_no_text_is_too_odd(text: str) -> None:
    check(SHIPPED.assess(text))


def test_easy_chat_is_safer_with_the_small_tier_than_a_competition_problem() -> None:
    problem = (
        "Let $f(x) = x^4 - 3x^2 + \\frac{1}{2}$. Find the sum of all real $t$ for which $f(t) = f(t+1)$."
    )
    assert (
        SHIPPED.assess("Hello! How are you doing today?").good["7b"] > 2 * SHIPPED.assess(problem).good["7b"]
    )


def test_what_is_hopeless_for_all_tiers_gains_little() -> None:
    """Hard is not the same as worth the dearer tier."""
    problem = "Compute $\\sum_{n=1}^{\\infty} \\frac{1}{n^2 + 3n + 2}$ and prove that your answer is correct."
    story = (
        "A baker sells 12 loaves for 3 dollars each in the morning and half as many in the afternoon for 2 dollars."
        " How much does he earn on that day?"
    )
    gain = {
        text: good["70b"] - good["7b"] for text in (problem, story) for good in [SHIPPED.assess(text).good]
    }
    assert gain[story] > gain[problem]


def test_the_same_text_gives_the_same_answer_from_every_instance() -> None:
    first, second = SHIPPED.assess("Name a bird."), Classifier.load().assess("Name a bird.")
    assert (first.task, first.good) == (second.task, second.good)


def test_scoring_needs_numpy_alone() -> None:
    code = (
        "import sys; from classifier.model import Classifier; Classifier.load().assess('Hello');"
        " print(*sorted({'sklearn', 'scipy', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "\n"
