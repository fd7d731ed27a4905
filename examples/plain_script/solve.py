"""A program in plain Python. It knows a server by OPENAI_BASE_URL and OPENAI_API_KEY, and nothing of verl_ext.

    export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none
    echo '{"question": "7 + 5 - 3"}' | python examples/plain_script/solve.py

It prints the totals of the sum. Any language would do.
"""

import json
import os
import sys
from urllib.request import Request, urlopen

URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}


def ask(model: str, content: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    with urlopen(Request(URL, json.dumps(body).encode(), HEADERS)) as response:
        return json.load(response)["choices"][0]["message"]["content"].strip()


problem, hint = json.load(sys.stdin)["question"], ""
for _ in range(3):
    solution = ask("solver", f"solve: {problem}{hint}")
    verdict = ask("verifier", f"check: {problem} : {solution}")
    if not verdict.startswith("wrong"):
        break
    hint = f" : {solution} : {verdict}"
print(solution)
