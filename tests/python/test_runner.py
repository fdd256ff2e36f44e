"""The runners of the tests: what `tests/run` forgives, and what not; what `tests/prove` tells."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import eventually

TESTS_FOLDER = Path(__file__).parents[1]

# A test of each kind; FLAKY names a file that is there from the second run on.
TESTS = """
#[test] fn passes() {}
#[test] #[ignore] fn is_ignored() {}
#[test] fn fails() { panic!("as always") }
#[test] fn is_unsafe_once() { once("SAFETY VIOLATED: two holders", "unsafe") }
#[test] fn fails_once() { once("by chance", "chance") }
fn once(why: &str, what: &str) {
    let file = std::env::temp_dir().join(what);
    assert!(std::fs::exists(&file).unwrap() || std::fs::File::create(file).is_err(), "{why}");
}
#[test] #[ignore] fn dies() { std::process::abort() }
#[test] #[ignore] fn leaves() { std::process::exit(0) }
"""
# As libtest speaks of a test that does not end; of one that has failed before, it says only that.
HANGS = """#!/bin/sh
case "$*" in
    *--list*) printf 'fails: test\\nhangs: test\\npasses: test\\n' ;;
    *hangs*) printf 'test fails ... FAILED\\ntest hangs has been running for over 60 seconds\\n'
        sleep 1000 ;;
    *) printf 'test passes ... ok\\ntest result: ok. 1 passed; 0 failed; 0 ignored\\n' ;;
esac
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("run", tmp_path, monkeypatch)


def loaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"tests_{name}", str(TESTS_FOLDER / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return module


def program(runner: ModuleType, folder: Path) -> Any:
    (folder / "tests.rs").write_text(TESTS)
    compile_it = ["rustc", "--test", "--edition", "2024", "-o", "tests", "tests.rs"]
    subprocess.run(compile_it, cwd=folder, check=True)
    return runner.TestProgram("scratch", str(folder / "tests"), folder)


def is_running(process: int) -> bool:
    """Whether there is such a process, and not only what is left of it until init asks for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failure_by_chance_is_flaky_and_a_breach_of_safety_or_a_death_is_never_forgiven(
    runner: ModuleType, tmp_path: Path
) -> None:
    tests = program(runner, tmp_path)
    result = tests.run()
    assert (result.passed, result.skipped, len(result.failures)) == (1, 3, 3)
    failed, flaky = runner.judge(result.failures)
    assert flaky == ["scratch fails_once"]
    assert failed == ["scratch fails", "scratch is_unsafe_once: not run again"]
    for test, why in (("dies", "status -6"), ("leaves", "status 0")):
        result = tests.run(("--include-ignored", test))
        failed, flaky = runner.judge(result.failures)
        assert flaky == []
        assert failed == [f"scratch (ended with {why}, after 0 of 2 tests): not run again"]
    sanitized = "==1==ERROR: AddressSanitizer: heap-use-after-free"
    passes = runner.Command("scratch passes", ("true",), tmp_path)
    failed, flaky = runner.judge([runner.Failure("scratch passes", sanitized, passes)])
    assert (failed, flaky) == (["scratch passes: not run again"], [])


def test_a_test_that_hangs_is_ended_and_never_forgiven_and_the_others_go_on(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TEST_LIMIT", runner.LIBTEST_SLOW)
    script = tmp_path / "hangs"
    script.write_text(HANGS)
    script.chmod(0o755)
    result = runner.TestProgram("scratch", str(script), tmp_path).run()
    assert result.passed == 1
    failed, hung = result.failures
    assert (failed.test, hung.test) == ("scratch fails", "scratch hangs")
    assert hung.said == "It was not done after 60 s, so its program was ended."
    # What the other one said is lost: it may have been a breach of safety.
    assert failed.again is None
    assert hung.again is None


def test_a_native_program_that_fails_is_run_again_and_any_other_failure_is_not(
    runner: ModuleType,
) -> None:
    ok = "ok mutex (1 s)\n"
    one = f"{ok}FAILED fork (2 s)\n    why\nnative: 1 passed, 1 failed\n"
    assert runner.native_result(0, f"{ok}native: 1 passed, 0 failed\n") == runner.Result(passed=1)
    result = runner.native_result(1, one)
    assert [(it.test, it.said, it.again is None) for it in result.failures] == [
        ("native fork", "    why\n", False)
    ]
    for status, said in [
        (None, one),
        (-9, f"{ok}native: 1 passed, 0 failed\n"),
        (1, ok),
        (1, f"{ok}native: 1 passed, 1 failed\n"),
    ]:
        last = runner.native_result(status, said).failures[-1]
        assert (last.test, last.again) == (f"native (status {status})", None)


def test_each_language_runs_each_behaviour_on_memcached_and_another_store_and_meets_all_stores(
    runner: ModuleType,
) -> None:
    stores, behaviours = ["memcached", "redis", "sqlite", "memory"], [f"b{n}" for n in range(40)]
    of_a_language = {
        (language, behaviour): [f"mutex::{language}_on_{store}::{behaviour}" for store in stores]
        for language in ("rust", "c", "cpp", "python")
        for behaviour in behaviours
    }
    others = ["renewal::tests::python", "mutex::rust_on_valkey::b1"]
    chosen = runner.of_the_gate([*others, *itertools.chain(*of_a_language.values())])
    assert set(others) < set(chosen)
    met = set()
    for (language, _), cells in of_a_language.items():
        runs = [store for store, cell in zip(stores, cells) if cell in chosen]
        assert "memcached" in runs
        assert len(runs) == (4 if language == "rust" else 2)
        met |= {(language, store) for store in runs}
    assert len(met) == 16


def test_a_command_that_takes_too_long_has_no_status_and_leaves_no_process(
    runner: ModuleType, tmp_path: Path
) -> None:
    words = ("sh", "-c", "sleep 1000 & echo $!; wait")
    status, said = runner.Command("slow", words, tmp_path, limit=1).run()
    assert status is None
    eventually(lambda: not is_running(int(said)))


def test_a_part_of_prove_tells_the_sums_of_its_commands_or_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = loaded("prove", tmp_path, monkeypatch)
    results = """
        test result: ok. 2 passed; 0 failed; 1 ignored; finished in 0.1 s
        test result: FAILED. 3 passed; 1 failed; 0 ignored; finished in 0.2 s
        NOT RUN: miri"""
    words = ("printf", "%s", results)
    summed = prove.Part("properties", words, r"(\d+) (passed|failed); ").run()
    assert summed == ("in part", "5 passed, 1 failed; NOT RUN: miri")
    nothing = ("echo", "test result: ok. 0 passed; 0 failed; 0 ignored")
    assert prove.Part("time", nothing, r"(\d+) (passed|failed); ").run()[0] == "FAILED"
    last = prove.Part("sanitize", ("printf", "run 1\\nrun 2\\nbye"), r"^run \d")
    assert last.run() == ("ok", "run 2")
    assert prove.Part("soak", ("sh", "-c", "echo ends; false"), "never").run() == ("FAILED", "ends")
