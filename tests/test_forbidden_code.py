"""What no module of ours may do, whatever it is for: read by its syntax tree, so that no test has to reach it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("backends", "classifier", "gateway", "prefixcache", "sessions")
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# Calls that can run what a file or a stranger says. `torch.load` reads pickles unless told not to.
CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "subprocess.getoutput"}


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_runs_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {name.partition(".")[0] for name in imports(tree)} & MODULES
    for name, call in calls(tree):
        assert name not in CALLS, ast.unparse(call)
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        assert options.get("shell", "False") == "False", ast.unparse(call)
        assert options.get("trust_remote_code", "False") == "False", ast.unparse(call)
        assert options.get("allow_pickle", "False") == "False", ast.unparse(call)


def test_keys_are_compared_in_constant_time() -> None:
    """A key is looked up by its digest; where two digests meet, it is by `compare_digest`, never `==`."""
    tree = ast.parse((ROOT / "gateway/tenants.py").read_text(encoding="utf-8"))
    compared = {
        ast.unparse(side)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
        for side in (node.left, *node.comparators)
    }
    assert not [side for side in compared if "digest" in side or "key" in side.split(".")], compared
