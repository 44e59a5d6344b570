"""``edgeprec eval`` on a real tiny pair: the contract's JSON, tables that say the same, files, and a rotated copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from edgeprec.bundle import Bundle
from edgeprec.cli.eval_markdown import draft_table, drafts_by_kind_table, evaluation_markdown, mode_table
from edgeprec.cli.eval_pictures import bin_label, draw_pictures
from edgeprec.runtime.evaluation_settings import EvaluationSettings

Invoke = Callable[..., Any]
SMALL = {"prompts_per_kind": 1, "reply_tokens": 8, "draft_prompts_per_kind": 1, "draft_lengths": (1, 4)}


@pytest.fixture(scope="session")
def roomy_pair(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported pair whose context holds the prompts that ship."""
    import edgeprec

    folder = tmp_path_factory.mktemp("roomy")
    checkpoint = make_checkpoint(folder / "checkpoint", max_positions=1024)
    return edgeprec.export_bundle(checkpoint, folder / "roomy.edgeprec")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command measure as little as there can be."""
    monkeypatch.setattr(
        EvaluationSettings.__init__, "__kwdefaults__", EvaluationSettings.__init__.__kwdefaults__ | SMALL
    )


@pytest.fixture(scope="session")
def found(roomy_pair: Path) -> dict[str, Any]:
    """Return one evaluation as plain values, as the command prints it."""
    import edgeprec
    from edgeprec.prompts import load_prompts
    from edgeprec.runtime.evaluation import evaluate

    with edgeprec.load(roomy_pair, sensor="none", threads=1) as session:
        values = evaluate(
            session, load_prompts("short"), settings=EvaluationSettings(**SMALL), has_draft_model=False
        ).to_json()
    facts = {"bundle": "roomy", "rotated": False, "quantizer": "gptq", "group_size": 32, "bits_per_weight": 4.5}
    return {**facts, "engine": "onnxruntime on cpu", "seconds": 1.0, "complete": True, **values}


def test_json_is_the_contract(roomy_pair: Path, invoke: Invoke, small: None) -> None:
    """One object with layers, modes and drafts; mode exact loses nothing."""
    outcome = invoke("eval", str(roomy_pair), "--json", "--sensor", "none")
    assert outcome.code == 0, outcome.err
    values = json.loads(outcome.out)
    assert (values["bundle"], values["rotated"], values["quantizer"]) == ("roomy", False, "gptq")
    assert [row["gated"] for row in values["layers"]] == [1, 2]
    assert values["modes"]["exact"] == {"token_match": 1.0}
    assert {row["token_match"] for row in values["exact_by_layers"]} == {1.0}
    assert {(row["name"], row["k"]) for row in values["drafts"]} >= {("self", 1), ("self", "adaptive"), ("ngram", 4)}
    assert values["prompts"] == 4
    assert (values["complete"], values["tables"]) == (True, ["layers", "modes", "drafts"])


def test_files_are_written(roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path) -> None:
    """-o makes the folder and leaves JSON, Markdown and pictures that belong together."""
    folder = tmp_path / "deep" / "fidelity"
    outcome = invoke("eval", str(roomy_pair), "-o", str(folder), "--sensor", "none")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("# Fidelity of roomy\n")
    page = (folder / "eval.md").read_text(encoding="utf-8")
    pictures = sorted(path.name for path in folder.glob("*.svg"))
    assert "agreement-by-layers.svg" in pictures
    assert all(f"]({name})" in page for name in pictures)
    for name in pictures:
        ElementTree.parse(folder / name)
    values = json.loads((folder / "eval.json").read_text(encoding="utf-8"))
    assert page == evaluation_markdown(values, pictures=tuple(draw_pictures(values)))


def test_rotated_copy_is_measured_and_named(
    roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--rotate makes a calibrated copy in the cache, once, and the tables say that they are of it."""
    monkeypatch.setenv("EDGEPREC_CACHE", str(tmp_path / "cache"))
    first = invoke("eval", str(roomy_pair), "--rotate", "--json", "--sensor", "none")
    assert first.code == 0, first.err
    values = json.loads(first.out)
    assert values["rotated"] is True
    assert values["modes"]["bounded"] is not None
    (copy,) = (tmp_path / "cache").glob("roomy-rotated-*.edgeprec")
    assert Bundle.open(copy).calibration_path is not None
    made = (copy / "bundle.json").stat().st_mtime_ns
    second = invoke("eval", str(roomy_pair), "--rotate", "--sensor", "none")
    assert "rotated copy" in second.out
    assert (copy / "bundle.json").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--epsilon", "2"), 2, "epsilon is 2.0, expected above 0, below 1"),
        (("--epsilon", "nan"), 2, "'nan' is not a finite number"),
        (("-o", "taken"), 2, "cannot be made"),
        (("--only", "layers,speed"), 2, "'speed' is no table, expected some of layers, modes, drafts"),
        (("--resume",), 2, "--resume needs -o"),
        (("--context", "20"), 2, "none of 27 prompts fits into a context of 20 tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    roomy_pair: Path,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    """One sentence and the exit code of the contract, before the long work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    outcome = invoke("eval", str(roomy_pair), *arguments, "--sensor", "none")
    assert outcome.code == code
    assert message in outcome.err


def test_an_interrupted_run_keeps_its_tables_and_is_resumed(
    roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the second table leaves the first one in the folder and on the screen; --resume measures the rest."""
    from edgeprec.runtime import evaluation

    command = ("eval", str(roomy_pair), "-o", str(tmp_path), "--sensor", "none")

    def interrupt(*_values: Any, **_keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "measure_modes", interrupt)
        outcome = invoke(*command)
    assert outcome.code == 130
    assert "**Not complete**" in outcome.out
    assert outcome.out.count("Not measured.") == 3
    partial = json.loads((tmp_path / "eval.json").read_text(encoding="utf-8"))
    assert (partial["complete"], partial["tables"]) == (False, ["layers"])
    assert "modes" not in partial
    assert (tmp_path / "eval.md").read_text(encoding="utf-8").startswith("# Fidelity of roomy\n")
    assert {path.name for path in tmp_path.glob("*.svg")} == {"agreement-by-layers.svg", "agreement-by-entropy.svg"}

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "measure_layers", interrupt)  # it is known
        outcome = invoke(*command, "--resume")
    assert outcome.code == 0, outcome.err
    whole = json.loads((tmp_path / "eval.json").read_text(encoding="utf-8"))
    assert (whole["complete"], whole["tables"]) == (True, ["layers", "modes", "drafts"])
    assert whole["layers"] == partial["layers"]
    assert whole["seconds"] > partial["seconds"]
    assert "Not measured." not in outcome.out

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_texts", interrupt)  # nothing is left to do
        again = invoke(*command, "--resume")
    assert (again.code, again.out) == (0, outcome.out)


@pytest.mark.parametrize("was_there", [False, True])
def test_nothing_measured_leaves_no_folder(
    roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """Ctrl-C before the first table takes away what the command made, and nothing else."""
    from edgeprec.runtime import evaluation

    def interrupt(*_values: Any, **_keywords: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "write_texts", interrupt)
    folder = tmp_path / "new" / "fidelity"
    if was_there:
        folder.mkdir(parents=True)
    outcome = invoke("eval", str(roomy_pair), "-o", str(folder), "--sensor", "none")
    assert outcome.code == 130
    assert folder.exists() is was_there
    assert folder.parent.exists() is was_there


def test_a_kill_leaves_whole_files(
    roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every table the folder holds JSON and Markdown that say the same, with nothing half written beside them."""
    from edgeprec.cli import eval_files

    seen = []
    write = eval_files.write_evaluation

    def watched(folder: Path, found: dict[str, Any]) -> None:
        write(folder, found)
        seen.append(json.loads((folder / "eval.json").read_text(encoding="utf-8")))
        page = (folder / "eval.md").read_text(encoding="utf-8")
        assert page == evaluation_markdown(seen[-1], pictures=tuple(draw_pictures(seen[-1])))
        assert not list(folder.glob(".*"))

    monkeypatch.setattr(eval_files, "write_evaluation", watched)
    outcome = invoke("eval", str(roomy_pair), "-o", str(tmp_path), "--only", "drafts,modes", "--sensor", "none")
    assert outcome.code == 0, outcome.err
    assert [values["tables"] for values in seen] == [["modes"], ["modes"], ["modes", "drafts"]]
    assert [values["complete"] for values in seen] == [False, False, True]
    assert all("layers" not in values for values in seen)


def test_resuming_something_else_is_refused(roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path) -> None:
    """Tables of other settings do not mix; neither does a file that is no evaluation."""
    command = ("eval", str(roomy_pair), "-o", str(tmp_path), "--only", "modes", "--sensor", "none")
    assert invoke(*command).code == 0
    outcome = invoke(*command, "--resume", "--epsilon", "0.2")
    assert outcome.code == 2
    assert "was measured with settings" in outcome.err
    (tmp_path / "eval.json").write_text("[]")
    outcome = invoke(*command, "--resume")
    assert outcome.code == 2
    assert "is no evaluation" in outcome.err


def test_resuming_nothing_measures_everything(roomy_pair: Path, invoke: Invoke, small: None, tmp_path: Path) -> None:
    """--resume on an empty folder is a plain run."""
    outcome = invoke(
        "eval", str(roomy_pair), "-o", str(tmp_path), "--only", "modes", "--resume", "--json", "--sensor", "none"
    )
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == json.loads((tmp_path / "eval.json").read_text(encoding="utf-8"))


def test_a_folder_that_is_no_bundle(invoke: Invoke, tmp_path: Path) -> None:
    """Exit code 3, like everywhere."""
    assert invoke("eval", str(tmp_path)).code == 3


def test_pictures_leave_out_what_says_nothing(found: dict[str, Any]) -> None:
    """A bin with a handful of tokens has no dot, and without judged drafts there is no picture of them."""
    changed = deepcopy(found)
    bins = changed["entropy"][-1]["bins"]
    bins[0] |= {"tokens": 3, "top1": 0.0}
    bins[1] |= {"tokens": 50, "top1": 0.25}
    changed["acceptance"] = []
    pictures = draw_pictures(changed)
    assert set(pictures) == {"agreement-by-layers.svg", "agreement-by-entropy.svg"}
    assert "2 + head in INT4: 25.0 %" in pictures["agreement-by-entropy.svg"]
    assert "2 + head in INT4: 0.0 %" not in pictures["agreement-by-entropy.svg"]


def test_tables_say_when_something_was_not_measured(found: dict[str, Any]) -> None:
    """null is a dash or words, never a 0."""
    changed = deepcopy(found)
    changed["modes"]["bounded"] = None
    changed["notes"] = ["mode bounded needs a calibration"]
    page = evaluation_markdown(changed)
    assert any("not measured" in line for line in mode_table(changed))
    assert "Note: mode bounded needs a calibration." in page
    row = {"name": "self", "k": 2, "rule": "fixed", "acceptance": None, "tokens_per_s": None, "speedup_over_fp16": None}
    assert list(draft_table([row]))[-1] == "| self | 2 | fixed | - | - | - |"


def test_almost_all_is_not_all(found: dict[str, Any]) -> None:
    """A share that rounds to 100 % and is less reads as less."""
    changed = deepcopy(found)
    changed["modes"]["exact"]["token_match"] = 0.9999
    assert "> 99.9 %" in "\n".join(mode_table(changed))


def test_best_fixed_length_stands_beside_the_adaptive_one() -> None:
    """By kind: the fastest fixed length with its K, and the adaptive one by the entropy rule."""

    def row(k: int | str, rule: str, speed: float) -> dict[str, Any]:
        return {"kind": "code", "name": "self", "k": k, "rule": rule, "speedup_over_fp16": speed}

    rows = [row(1, "fixed", 1.2), row(4, "fixed", 1.5), row("adaptive", "svip", 9.0), row("adaptive", "entropy", 1.6)]
    assert list(drafts_by_kind_table(rows))[2:] == [
        "| self, best fixed K | 1.50x (K=4) |",
        "| self, adaptive | 1.60x |",
    ]


def test_bins_in_words() -> None:
    """Open at both ends."""
    labels = [bin_label({"low_bits": low, "high_bits": high}) for low, high in ((0.0, 0.1), (0.5, 1.0), (4.5, None))]
    assert labels == ["< 0.1", "0.5-1", "> 4.5"]
