"""Packaged environments: the example is installed by pip, and used and refused in fresh processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verl_ext import __version__

EXAMPLE = Path(__file__).parents[1] / "examples" / "packaged_environment"
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
MAIN, CHECK, RECIPES = "verl.trainer.main_ppo", "verl_ext.check", "verl_ext.recipe_list"
DATA = "from capitals_environment.data import ensure; ensure('data/capitals')"


def installed(folder: Path, needs: str = "verl_ext>=0.1,<0.2") -> Path:
    """A folder into which pip has installed the example, built from a copy that needs this verl_ext."""
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    project = source / "pyproject.toml"
    text = project.read_text()
    assert '"verl_ext>=0.1,<0.2"' in text
    project.write_text(text.replace("verl_ext>=0.1,<0.2", needs))
    done = subprocess.run([*PIP, "--target", target, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def start(site: Path, cwd: Path, *arguments: str) -> subprocess.Popen:
    """A Python that finds the packages in `site`."""
    environment = os.environ | {"PYTHONPATH": str(site), "VERL_PLATFORM": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env=environment, cwd=cwd, **pipes)


def run(site: Path, cwd: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    process = start(site, cwd, *arguments)
    out, err = process.communicate()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return installed(tmp_path_factory.mktemp("compatible"))


@pytest.fixture
def changed(site, tmp_path) -> Path:
    """A copy of the installed packages, to break."""
    return Path(shutil.copytree(site, tmp_path / "changed"))


def test_an_installed_recipe_is_listed_composed_and_checked(site, tmp_path):
    assert run(site, tmp_path, "-c", DATA)[0] == 0
    check = start(site, tmp_path, "-m", CHECK, "+recipe=capitals", "mas.workflow.rounds=3")
    composed = start(site, tmp_path, "-m", MAIN, "--cfg", "job", "+recipe=capitals")
    status, listed, err = run(site, tmp_path, "-m", RECIPES)
    assert status == 0 and not err and "mhgpo_tiny " in listed
    title = "Two agents look up the capitals of invented countries"
    assert f"{title}\n{'':<27} needs a CPU\n{'':<27} from capitals-environment 1.0.0\n" in listed
    out, err = check.communicate()
    assert check.returncode == 0, out + err
    assert "environment       capitals-environment 1.0.0" in out and "Capitals: reader, checker" in out
    assert "train.parquet: 32 rows" in out and "The configuration is right" in out
    out, err = composed.communicate()
    assert composed.returncode == 0 and "_target_: capitals_environment.workflow.Capitals" in out, err
    assert "max_prompt_length: 512" in out, "the base of verl_ext that the recipe extends"


def test_another_version_of_verl_ext_is_refused_by_a_sentence(tmp_path):
    site = installed(tmp_path, needs="verl_ext>=7,<8")
    sentence = (
        "environment 'capitals' (capitals-environment 1.0.0): it was made for another version of verl_ext: "
        f"installed is {__version__}, allowed is <8,>=7. Remedy: pip install 'verl_ext<8,>=7', or another version of "
    )
    training = start(site, tmp_path, "-m", MAIN, "+recipe=capitals")
    status, out, err = run(site, tmp_path, "-m", RECIPES)
    assert status == 1 and sentence in err and "mhgpo_tiny " in out and "capitals" not in out
    status, out, err = run(site, tmp_path, "-m", "verl_ext", "train", "+recipe=capitals")
    assert status == 2 and sentence in err
    out, err = training.communicate()
    assert training.returncode == 2 and sentence in err and "Traceback" not in err, err


def test_one_that_cannot_be_imported_is_told_where_it_is_asked_for(changed, tmp_path):
    (changed / "capitals_environment" / "__init__.py").write_text("import no_such_library\n")
    process = start(changed, tmp_path, "-m", CHECK, "+recipe=capitals")
    status, out, err = run(changed, tmp_path, "-m", RECIPES)
    for said in (err, "".join(process.communicate())):
        assert (
            "'capitals_environment' cannot be imported: ModuleNotFoundError: No module named 'no_such_library'" in said
        )
        assert "Remedy: mend it, or pip install what it lacks" in said and '__init__.py", line 1' in said
    assert status == 1 and "mhgpo_tiny " in out and process.returncode == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("clash", "its recipe 'mhgpo_tiny' has the name of a recipe of verl_ext"),
        ("no recipes", "has no recipe (NAME.yaml)"),
        ("no package", "names 'capitals_environment', which is no package that can be found"),
        ("no versions", "it does not say which versions of verl_ext it works with"),
        ("broken metadata", "what it requires cannot be read (Expected"),
        ("no head", "a recipe begins with"),
    ],
)
def test_other_faults_are_told_by_the_list(changed, tmp_path, fault, words):
    package = changed / "capitals_environment"
    recipe = package / "configs" / "recipe" / "capitals.yaml"
    if fault == "clash":
        recipe.rename(recipe.with_name("mhgpo_tiny.yaml"))
    elif fault == "no recipes":
        recipe.unlink()
    elif fault == "no package":
        shutil.rmtree(package)
    elif fault == "no versions":
        (metadata,) = changed.glob("*.dist-info/METADATA")
        lines = metadata.read_text().splitlines(keepends=True)
        metadata.write_text("".join(line for line in lines if not line.startswith("Requires-Dist: verl_ext")))
    elif fault == "broken metadata":
        (metadata,) = changed.glob("*.dist-info/METADATA")
        metadata.write_text(metadata.read_text().replace("Requires-Dist: verl_ext", "Requires-Dist: verl_ext (", 1))
    else:
        recipe.write_text("# @package _global_\n")
    status, out, err = run(changed, tmp_path, "-m", RECIPES)
    assert status == 1 and words in err and "mhgpo_tiny " in out
    assert "Remedy" in err or fault == "no head"
