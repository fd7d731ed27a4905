"""Importing the tools loads no heavy library."""

import subprocess
import sys


def test_import_loads_neither_torch_nor_verl_nor_an_index_library():
    code = (
        "import sys, verl_ext.tools, verl_ext.tools.retrieval, verl_ext.tools.retrieval_server, verl_ext.rewards.qa\n"
        "import verl_ext.tools.catalogue.search.measure, verl_ext.tools.simulator_server\n"
        "heavy = {'torch', 'verl', 'ray', 'faiss', 'bm25s', 'sentence_transformers', 'transformers', 'mcp', 'hydra',\n"
        "         'json_repair'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
