"""`verl_ext doctor`: a run in words, and logged rows recomputed."""

from __future__ import annotations

import gzip
import json

import pytest

from verl_ext.doctor import main
from verl_ext.observe.doctor_report import untaught
from verl_ext.observe.progress import Progress
from verl_ext.observe.runlog import RunLog
from verl_ext.observe.trajectory_files import FOLDER, ROWS
from verl_ext.plugin import package_path
from verl_ext.trainer.row import Row

FINE = {
    "update/rows": 12,
    "update/optimiser_steps": 1,
    "doctor/tokens_checked": 1.0,
    "doctor/mask_coverage": 0.75,
    "doctor/without_trained_tokens": 0.0,
    "doctor/without_advantage": 0.25,
    "doctor/unknown_version": 0.0,
    "doctor/weights_compared": 0.0,
    "doctor/unknown_adapter": 0.0,
    "doctor/version_lag": 0.5,
    "doctor/version_lag_max": 2,
    "doctor/kl_numerical": 1e-9,
    "doctor/kl_stale": 2e-3,
    "doctor/weight/a": 0.5,
    "groups/size": 4.0,
    "groups/zero_variance": 0.25,
    "groups/single": 0.0,
    "sampling/trajectories": 16,
    "sampling/failed_trajectories": 4,
    "sampling/failed/timeout": 4,
    "sampling/left_out": 0.25,
}


def written(folder, *steps):
    log = RunLog(folder)
    log.start(0, len(steps))
    for step, metrics in enumerate(steps, 1):
        log.write(step, metrics)


def test_a_run_in_words(tmp_path, capsys):
    second = {"doctor/without_advantage": 1.0, "groups/single": 1.0, "doctor/kl_numerical": 0.01}
    unread = {"agents/a/unparsable": 0.75, "agents/b/unparsable": 0.25}
    written(tmp_path, FINE | {"doctor/kl_numerical": -1e-9}, FINE | second | unread)
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for words in (
        "every step trained exactly the tokens that were sampled (12 to 12 rows); 75% of the response tokens train",
        "rows were 0.5 updates old on average, 2 at most; only the version is checked: this engine does not tell",
        "every row was sampled by the adapter of its agent, which it trains",
        "same weights: 5.0e-03 per token on average, 1.0e-02 in the step furthest from 0; older weights: 2.0e-03 per",
        "- a: 75% of its last outputs could not be read",
        "8 of 32 trajectories failed (timeout 8); 25.0% were left out",
        "- 1 steps taught nothing, e.g. step 2: every group has a single member",
        "- rollout engine and trainer disagree under the same weights: KL 1.0e-02 per token",
        "- step 1 left out 25% of its trajectories",
    ):
        assert words in text, (words, text)


def test_a_quiet_run(tmp_path, capsys):
    quiet = FINE | {"sampling/failed_trajectories": 0, "sampling/left_out": 0.0, "doctor/version_lag_max": 0}
    written(tmp_path, quiet)
    assert main([str(tmp_path)]) == 0
    assert "Nothing to look at." in (text := capsys.readouterr().out) and "none of 16 trajectories failed" in text


def test_a_step_in_which_a_policy_head_learns_is_no_step_that_taught_nothing(tmp_path, capsys):
    """Puppeteer with a head has no row for the language model: it makes no optimiser step."""
    idle = {"update/optimiser_steps": 0, "head/orchestrator/decisions": 8.0, "head/orchestrator/loss": 0.1}
    learning, still = (idle | {"head/orchestrator/grad_norm": norm} for norm in (0.3, 0.0))
    progress = Progress(tmp_path, "accuracy")
    written(tmp_path, learning, still)
    progress._show_new()
    text = capsys.readouterr().out
    assert "step 2 taught nothing" in text and "step 1 taught" not in text


def logged(folder, **changes):
    rewards, rows = [1.0, 0.0, 0.0, 1.0], []
    for number, reward in enumerate(rewards):
        row = Row(
            *("u", [5, 6], [7, 8], [1, 1], [-1.0, -2.0], reward, "a", "u/a/0", "ok"),
            trajectory=number,
            versions=(1, 1),
            sampled_by=("a",),
        )
        own = {"prompts": row.prompt, "responses": row.response, "response_mask": row.mask}
        own |= {"rollout_log_probs": row.log_probs, "old_log_probs": row.log_probs, "weight": 1.0, "question": 3}
        value = 0.8660239  # (1 - 1/2) / (sqrt(1/3) + 1e-6)
        rows.append(own | {"advantages": [value if reward else -value] * 2, "tag": row.tag | changes})
    about = {"estimator": "mhgpo", "options": {}, "by_std": True, "temperature": 1.0, "model": "nowhere/else"}
    path = folder / FOLDER / ROWS.format(step=2)
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps({"step": 2, "run": about, "rows": rows}).encode()))
    return rows


def test_logged_rows_are_recomputed(tmp_path, capsys):
    logged(tmp_path)
    assert main([str(tmp_path), "--step", "2", "--question", "3"]) == 0
    text = capsys.readouterr().out
    assert "4 rows of 1 questions" in text and "advantage +0.8660 (recomputed +0.8660)" in text
    assert "sampled by the weights of step 1, adapter a" in text
    worst = float(text.split("largest difference from the run ")[1].split()[0])
    assert worst < 1e-6
    assert f"not recomputed, there is no {tmp_path / 'global_step_1'}" in text


def test_a_model_that_is_not_here_leaves_the_advantages(tmp_path, capsys, monkeypatch):
    """A run is often looked at on another machine than the one that trained it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = tmp_path / FOLDER / ROWS.format(step=1)
    rows = logged(tmp_path, versions=[0, 0])
    content = json.loads(gzip.decompress((path.parent / "step_000002.json.gz").read_bytes()))
    path.write_bytes(gzip.compress(json.dumps({**content, "step": 1, "rows": rows}).encode()))
    assert main([str(tmp_path), "--step", "1"]) == 0
    text = capsys.readouterr().out
    assert "recomputed by mhgpo" in text and "log-probabilities: not recomputed, nowhere/else cannot be loaded" in text
    assert main([str(tmp_path), "--step", "1", "--model", "nowhere/else"]) == 2
    assert "nowhere/else" in capsys.readouterr().err


def test_a_row_whose_reward_is_not_the_one_that_trained_shows(tmp_path, capsys):
    logged(tmp_path, reward=0.5)
    assert main([str(tmp_path), "--step", "2"]) == 0
    assert "largest difference from the run 8.7e-01" in capsys.readouterr().out


def test_rows_of_which_no_token_trains_are_shown(tmp_path, capsys):
    rows = logged(tmp_path)
    path = tmp_path / FOLDER / ROWS.format(step=2)
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["rows"] = [row | {"response_mask": [0, 0], "advantages": [0.0, 0.0]} for row in rows]
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    model = package_path("recipe/mhgpo/assets/tiny_model")
    assert main([str(tmp_path), "--step", "2", "--model", model]) == 0
    text = capsys.readouterr().out
    assert "no token of these rows trains" in text and text.count("0 of 2 tokens train") == 4


@pytest.mark.parametrize("option", ["--question", "--model"])
def test_an_option_that_would_do_nothing_is_refused(tmp_path, capsys, option):
    logged(tmp_path)
    with pytest.raises(SystemExit):
        main([str(tmp_path), option, "3"])
    assert "give --step, too" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "has no metrics.jsonl with training steps"),
        (["--step", "1"], "step 1 of .* was not logged; logged are [2]"),
        (["--step", "2", "--question", "9"], "--question 9 is not in the log of step 2; logged are [3]"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, capsys, arguments, words):
    logged(tmp_path)
    (tmp_path / FOLDER / "rows" / "step_copy.json.gz").write_bytes(b"")
    assert main([str(tmp_path), *arguments]) == 2
    assert words.replace(" of .*", f" of {tmp_path}") in capsys.readouterr().err


def test_the_policy_that_a_step_taught_nothing_is_named():
    flat, learned = ({"doctor/without_advantage": share, "update/optimiser_steps": 1} for share in (1.0, 0.5))
    metrics = {f"policies/small/{name}": value for name, value in flat.items()}
    metrics |= {f"policies/large/{name}": value for name, value in learned.items()} | {"policies/rests/update/rests": 1}
    sentence = "step 3 taught policy small nothing: "
    assert untaught({"step": 3, "metrics": metrics}) == [f"{sentence}in every group all rewards are equal"]
    (single,) = untaught({"step": 3, "metrics": metrics | {"groups/single": 1.0}})
    assert single.startswith(f"{sentence}every group has a single member")
    assert untaught({"step": 3, "metrics": flat}) == ["step 3 taught nothing: in every group all rewards are equal"]
