"""What counts as a good answer, and what only looks like one."""

import pytest

from gateway.learning.checkers import Ask, Checker, Json, Judge, Number, Python, Regex, good


async def nobody(wanted: str, answer: str) -> bool:
    raise AssertionError("no model is asked")


@pytest.mark.parametrize(
    ("checker", "answer", "right"),
    [
        (Number("72"), "48 + 24 = 72", True),
        (Number("72"), "She sold 72 clips, so 72.0", True),
        (Number("72"), "72 of 80", False),
        (Number("72"), "#### 72\nThat is 8 more than 64.", True),
        (Number("1200"), "It costs $1,200.", True),
        (Number("-3"), "x = -3", True),
        (Number("-3"), "x = −3", True),
        (Number("0.5"), "It is 0.5.", True),
        (Number("72"), "seventy-two", False),
        (Number("72"), "####", False),
        (Regex("yes|no"), " yes\n", True),
        (Regex("yes|no"), "yes!", False),
        (Json({"a": 1, "b": [True]}), '{"b": [true], "a": 1}', True),
        (Json({"a": 1}), '```json\n{"a": 1.0}\n```', True),
        (Json({"a": 1}), '{"a": true}', False),
        (Json({"a": 1}), '{"a": "1"}', False),
        (Json({"a": 1}), '{"a": 1, "b": 2}', False),
        (Json({"a": 1}), 'Here it is: {"a": 1}', False),
        (Json([]), "[" * 100_000, False),
    ],
)
async def test_exact_checkers(checker: Checker, answer: str, right: bool) -> None:
    assert await good(checker, answer, nobody) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Sure:\n```python\ndef double(x):\n    return 2 * x\n```\nThat doubles it.", True),
        ("    return 2 * x", True),  # the rest of a function that the prompt begins
        ("```python\ndef double(x):\n    return 2 * x", True),  # cut after its last line
        ("```python\ndef double(x):\n    return x\n```", False),
        ("I cannot.", False),
        ("import sys\nsys.exit(0)", False),
    ],
)
async def test_code_is_run(answer: str, right: bool) -> None:
    checker = Python("assert double(4) == 8", before='def double(x):\n    """Twice x."""')
    assert await good(checker, answer, nobody) is right


@pytest.mark.parametrize(
    ("pattern", "answer", "right"),
    [
        ("(?i)no\\.?", " NO.\n", True),
        ('"?it\'s \\\\ \\\\n"?', "it's \\ \\n", True),
        ("(?s).*", "\ud800\x00 数学 🎉", True),
        ("(a+)+b", "a" * 40, False),  # a day's work
    ],
)
async def test_a_pattern_is_held_to_its_time(
    monkeypatch: pytest.MonkeyPatch, pattern: str, answer: str, right: bool
) -> None:
    monkeypatch.setattr("gateway.learning.sandbox.runs_through.__defaults__", (2.0,))
    assert await good(Regex(pattern), answer, nobody) is right


async def test_a_model_is_asked() -> None:
    heard = []

    async def ask(wanted: str, answer: str) -> bool:
        heard.append((wanted, answer))
        return len(heard) > 1

    judge: Ask = ask
    assert not await good(Judge("It is polite."), "No.", judge)
    assert await good(Judge("It is polite."), "No, thank you.", judge)
    assert heard[1] == ("It is polite.", "No, thank you.")


@pytest.mark.parametrize(
    ("checker", "fault"),
    [
        (Number("twelve"), "value: is not a number"),
        (Number("nan"), "value: is not a number"),
        (Regex("("), "pattern: missing ), unterminated subpattern at position 0"),
        (Python("assert ("), "tests: '(' was never closed (tests, line 1)"),
        (Python("x = 1", before="def f("), "before: '(' was never closed (before, line 1)"),
    ],
)
def test_what_cannot_be_checked_by(checker: Checker, fault: str) -> None:
    assert checker.fault() == fault
