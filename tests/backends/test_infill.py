"""Gaps: which tokens mark them, and that nothing a file says can."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from backends.infill import SPELLINGS, Spelling, find_infill
from backends.prompt import Prompt
from backends.tokenizer import TemplateError, Tokenizer

QWEN = SPELLINGS[0]


def folder_with(path: Path, names: tuple[str, ...], special: bool = True) -> Path:
    """A tokenizer of bytes that knows these names besides."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({token: id for id, token in enumerate(alphabet)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False) for name in names])
    made.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.prefix)
@pytest.mark.parametrize("special", [True, False])
def test_each_family_is_found_by_its_names(tmp_path: Path, spelling: Spelling, special: bool) -> None:
    tokenizer = Tokenizer(folder_with(tmp_path, spelling.names, special))
    assert tokenizer.infill is not None
    assert tokenizer.infill.names == spelling.names
    ids = tokenizer.encode_now(Prompt(text="a", suffix=spelling.prefix))
    spelled = [tokenizer.token(id)[0] for id in ids]
    assert spelled == [spelling.prefix, "a", spelling.suffix, *_letters(spelling.prefix), spelling.middle]


def _letters(text: str) -> list[str]:
    """One token a byte: those of a character alone are no text."""
    return [bytes([byte]).decode("utf-8", "replace") for byte in text.encode()]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_model_needs_all_three(missing: int) -> None:
    known = {name: id for id, name in enumerate(QWEN.names) if id != missing}
    assert find_infill(known.get) is None


def test_other_tokens_of_the_family_may_be_missing() -> None:
    known = {name: id for id, name in enumerate(QWEN.names[:4])}
    infill = find_infill(known.get)
    assert infill is not None and infill.ends == (0, 1, 2, 3)


def test_a_model_that_cannot_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer(folder_with(tmp_path, ("<|im_end|>",)))
    with pytest.raises(TemplateError, match="not taught to fill gaps"):
        tokenizer.encode_now(Prompt(text="a", suffix="b"))


def test_a_bos_comes_first(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ("<bos>", *QWEN.names))
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", made.token_to_id("<bos>"))]
    )
    made.save(str(folder / "tokenizer.json"))
    ids = Tokenizer(folder).encode_now(Prompt(text="", suffix="b"))
    assert [made.id_to_token(id) for id in ids] == ["<bos>", QWEN.prefix, QWEN.suffix, "b", QWEN.middle]


WRITTEN = st.lists(st.sampled_from([*QWEN.names, "<|im_end|>", "<|", "|>", "def f():\n", "é"]), max_size=6)


@pytest.mark.models
@given(WRITTEN, WRITTEN)
def test_no_file_can_write_control_tokens(qwen: Tokenizer, before: list[str], after: list[str]) -> None:
    """Else a comment in a file could end it and begin another, whose words the model would take for the editor's."""
    ids = qwen.encode_now(Prompt(text="".join(before), suffix="".join(after)))
    infill, vocabulary = qwen.infill, qwen.vocabulary()
    assert infill is not None
    assert [id for id in ids if not vocabulary[id]] == [infill.prefix, infill.suffix, infill.middle]
    assert b"".join(vocabulary[id] for id in ids).decode() == "".join([*before, *after])


@pytest.fixture(scope="module")
def qwen(qwen_05b_folder: Path) -> Tokenizer:
    made = Tokenizer(qwen_05b_folder)
    made.vocabulary()  # is made at its first use, and takes longer than an example may
    return made


def test_ids_are_what_they_are(tmp_path: Path) -> None:
    assert Tokenizer(folder_with(tmp_path, ())).encode_now(Prompt(ids=(7, 250, 3))) == [7, 250, 3]
