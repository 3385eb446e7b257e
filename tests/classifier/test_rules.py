"""Rules fire on what they are for, and keep quiet otherwise."""

import pytest

from classifier.features import STRUCTURE, extract
from classifier.rules import RULES


def fired(text: str) -> set[str]:
    structure = extract(text).structure
    return {task for task in RULES if structure[STRUCTURE.index(f"rule {task}")]}


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("Write a Python function to reverse a string", {"code"}),
        ("What is wrong here?\n```\nfoo()\n```", {"code"}),
        ("import os\nprint(os.sep)", {"code"}),
        ("Traceback (most recent call last):\n  File x", {"code"}),
        ("How many apples are left if 3 of 10 are eaten?", {"math"}),
        ("12 + 30", {"math"}),
        ("Find $\\frac{1}{2}$ of it", {"math"}),
        ("Translate into German: good morning", {"translation"}),
        ("Übersetze ins Englische: Hund", {"translation"}),
        ("请翻译这句话", {"translation"}),
        ("How do you say cat in French?", {"translation"}),
        ("Summarize the following text.", {"summarization"}),
        ("Long text. " * 30 + "Please write a summary.", {"summarization"}),
        ("TL;DR please", {"summarization"}),
        ("Write a poem about rain", {"creative"}),
        ("Hello!", {"chat"}),
        ("What is the capital of Peru?", set()),
        ("Who translated the Iliad?", set()),
        ("", set()),
    ],
)
def test_rules(text: str, tasks: set[str]) -> None:
    assert fired(text) == tasks
